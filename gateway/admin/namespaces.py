"""Pulsar's administrative REST interface for tenants, namespaces and their bundles."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from heliograph.gateway.admin.permissions import grants_parsed
from heliograph.gateway.admin.policies_object import check_quota, policies_parsed, policies_shown
from heliograph.gateway.admin.policy_shapes import object_of
from heliograph.gateway.admin.routes import (
    NAMESPACE,
    NO_CONTENT,
    TENANT,
    TEXT_OR_NO_CONTENT,
    NamespaceInUrl,
    in_bundle,
    text_values,
)
from heliograph.gateway.errors import PreconditionError, UnacceptableFieldError
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, json_body
from heliograph.gateway.shapes.json_forms import number_of
from heliograph.gateway.shapes.topics import (
    NON_PERSISTENT,
    PERSISTENT,
    After,
    Limit,
    Prefix,
    check_listed,
    topic_names_in,
    topics_in,
)
from heliograph.gateway.shapes.url_segments import decoded

router = APIRouter(
    tags=["namespaces"],
    responses={
        404: {"model": ErrorBody, "description": "No such tenant, namespace or bundle"},
        409: {"model": ErrorBody, "description": "It exists already, or something is in it"},
    },
)
_object_body = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
_NO_QUOTA = dict.fromkeys(("retention_seconds", "retention_bytes", "backlog_quota_seconds", "backlog_quota_bytes"), -1)
_BUNDLE_BY = {"LARGEST": "topics", "HOT": "messages_per_second"}
Force = Annotated[bool, Query(description="Also with everything that is in it")]


@router.get("/admin/v2/tenants", summary="List tenants")
async def tenants(services: ServicesDep) -> list[str]:
    """Return the names of all tenants."""
    return list(await services.admin.namespaces.tenants())


@router.get(TENANT, summary="A tenant")
async def tenant_of(services: ServicesDep, tenant: str) -> dict[str, Any]:
    """Return a tenant's roles and clusters."""
    found = await services.admin.namespaces.tenant(decoded(tenant))
    clusters = found["allowed_clusters"] or [services.config.cluster_name]
    return {"adminRoles": found["admin_roles"], "allowedClusters": clusters}


@router.put(TENANT, **NO_CONTENT, summary="Create a tenant", openapi_extra=_object_body)
async def create_tenant(request: Request, services: ServicesDep, tenant: str) -> None:
    """Create a tenant; the body is `{"adminRoles": [], "allowedClusters": ["standalone"]}`."""
    roles, clusters = _tenant_info(services, await json_body(request))
    await services.admin.namespaces.create_tenant(decoded(tenant), roles, clusters)


@router.post(TENANT, **NO_CONTENT, summary="Change a tenant", openapi_extra=_object_body)
async def update_tenant(request: Request, services: ServicesDep, tenant: str) -> None:
    """Replace a tenant's roles and clusters; the body is that of creating it."""
    roles, clusters = _tenant_info(services, await json_body(request))
    await services.admin.namespaces.update_tenant(decoded(tenant), roles, clusters)


@router.delete(TENANT, **NO_CONTENT, summary="Delete a tenant")
async def delete_tenant(services: ServicesDep, tenant: str, force: Force = False) -> None:
    """Delete a tenant: 409 while it has namespaces, unless `force` deletes them with all their topics."""
    name = decoded(tenant)
    if force:
        for namespace in await services.admin.namespaces.list(name):
            await services.admin.namespaces.delete(namespace, True)
    await services.admin.namespaces.delete_tenant(name)


@router.get("/admin/v2/namespaces/{tenant}", summary="List namespaces")
async def namespaces(services: ServicesDep, tenant: str) -> list[str]:
    """Return `tenant/namespace` of each namespace."""
    return list(await services.admin.namespaces.list(decoded(tenant)))


@router.get(NAMESPACE, summary="A namespace")
async def namespace_of(services: ServicesDep, name: NamespaceInUrl) -> dict[str, Any]:
    """Return a namespace's policies."""
    values = await services.admin.namespaces.policies(name)
    own = await services.admin.namespaces.policies(name, True)
    properties = await services.admin.namespaces.properties(name)
    granted = await services.admin.permissions.granted(name)
    return policies_shown(values, own, properties, granted, services.config.cluster_name)


@router.put(NAMESPACE, **NO_CONTENT, summary="Create a namespace", openapi_extra=_object_body)
async def create_namespace(request: Request, services: ServicesDep, name: NamespaceInUrl) -> None:
    """Create a namespace; the body is empty, or Pulsar's `Policies`, such as `{"bundles": {"numBundles": 16}}`.

    Fields that are null or `UNDEFINED` have the cluster's values.
    """
    body = object_of(await json_body(request) or {}, "policies")
    bundles = object_of(body.get("bundles") or {}, "bundles")
    count = number_of(bundles.get("numBundles") or 0, "numBundles", 0) or None
    values = policies_parsed(body, services.config.cluster_name)
    check_quota({**_NO_QUOTA, **values})
    properties = text_values(body.get("properties") or {})
    grants = grants_parsed(body)
    await services.admin.namespaces.create(name, count, values)
    await grants.apply(services.admin, name)
    if properties:
        await services.admin.namespaces.set_properties(name, properties)


@router.delete(NAMESPACE, **NO_CONTENT, summary="Delete a namespace")
async def delete_namespace(services: ServicesDep, name: NamespaceInUrl, force: Force = False) -> None:
    """Delete a namespace: 409 while it has topics, unless `force` deletes them."""
    await services.admin.namespaces.delete(name, force)


@router.get(f"{NAMESPACE}/properties", summary="A namespace's properties")
async def properties_of(services: ServicesDep, name: NamespaceInUrl) -> dict[str, str]:
    """Return the properties, which are notes of the user."""
    return dict(await services.admin.namespaces.properties(name))


@router.put(
    f"{NAMESPACE}/properties", **NO_CONTENT, summary="Add properties to a namespace", openapi_extra=_object_body
)
async def add_properties(request: Request, services: ServicesDep, name: NamespaceInUrl) -> None:
    """Add properties, or replace their values; the body is an object of texts."""
    given = text_values(await json_body(request) or {})
    await services.admin.namespaces.update_properties(name, given)


@router.delete(f"{NAMESPACE}/properties", **NO_CONTENT, summary="Remove all properties of a namespace")
async def clear_properties(services: ServicesDep, name: NamespaceInUrl) -> None:
    """Remove all properties."""
    await services.admin.namespaces.set_properties(name, {})


@router.put(f"{NAMESPACE}/property/{{key}}/{{value}}", **NO_CONTENT, summary="Set a property of a namespace")
async def set_property(services: ServicesDep, name: NamespaceInUrl, key: str, value: str) -> None:
    """Set one property."""
    await services.admin.namespaces.update_properties(name, {decoded(key): decoded(value)})


@router.get(f"{NAMESPACE}/property/{{key}}", **TEXT_OR_NO_CONTENT, summary="A property of a namespace")
async def property_of(services: ServicesDep, name: NamespaceInUrl, key: str) -> Response:
    """Return the value of one property as text, 204 when it is not set."""
    found = await services.admin.namespaces.properties(name)
    return _text(found.get(decoded(key)))


@router.delete(f"{NAMESPACE}/property/{{key}}", **TEXT_OR_NO_CONTENT, summary="Remove a property of a namespace")
async def remove_property(services: ServicesDep, name: NamespaceInUrl, key: str) -> Response:
    """Remove one property; return the value that it had as text, 204 when it was not set."""
    removed = await services.admin.namespaces.remove_properties(name, [decoded(key)])
    return _text(removed.get(decoded(key)))


@router.get(f"{NAMESPACE}/topics", summary="List a namespace's topics")
async def namespace_topics(
    services: ServicesDep,
    tenant: str,
    namespace: str,
    mode: Annotated[str, Query(pattern="^(PERSISTENT|NON_PERSISTENT|ALL)$")] = "PERSISTENT",
    after: After = "",
    limit: Limit = 0,
    prefix: Prefix = "",
) -> list[str]:
    """Return the full names of the topics, partitions one by one; clients use it for regex subscriptions."""
    domain = {"ALL": "", "PERSISTENT": PERSISTENT, "NON_PERSISTENT": NON_PERSISTENT}[mode]
    return await topic_names_in(services.admin, tenant, namespace, domain, after, limit, prefix)


@router.get("/admin/v2/{domain:topic_domain}/{tenant}/{namespace}", summary="List topics")
async def list_topics(
    services: ServicesDep,
    domain: str,
    tenant: str,
    namespace: str,
    bundle: Annotated[str | None, Query(description="Only topics of this bundle")] = None,
    after: After = "",
    limit: Limit = 0,
    prefix: Prefix = "",
) -> list[str]:
    """Return full names, with every partition of a partitioned topic. The last page is followed by an empty one.

    Without `limit`, 400 if there are more than 100,000.
    """
    wanted = None if bundle is None else in_bundle(bundle)
    return await topic_names_in(services.admin, tenant, namespace, domain, after, limit, prefix, wanted)


@router.get("/admin/v2/{domain:topic_domain}/{tenant}/{namespace}/partitioned", summary="List partitioned topics")
async def list_partitioned_topics(
    services: ServicesDep,
    domain: str,
    tenant: str,
    namespace: str,
    after: After = "",
    limit: Limit = 0,
    prefix: Prefix = "",
) -> list[str]:
    """Return the full names of the namespace's partitioned topics, all or a page of them."""
    names: list[str] = []
    async for topic, partitions in topics_in(services.admin, tenant, namespace, domain, after, prefix=prefix):
        if partitions > 0:
            names.append(str(topic))
            if len(names) == limit > 0:
                break
            check_listed(len(names), limit)
    return names


@router.get("/admin/v2/{domain:topic_domain}/{tenant}/{namespace}/{bundle}", summary="List the topics of a bundle")
async def topics_of_bundle(services: ServicesDep, domain: str, tenant: str, namespace: str, bundle: str) -> list[str]:
    """Return the full names of the topics in one bundle, such as `0x40000000_0x80000000`."""
    return await topic_names_in(services.admin, tenant, namespace, domain, wanted=in_bundle(bundle))


@router.get(f"{NAMESPACE}/bundles", summary="Bundles")
async def bundles_of(services: ServicesDep, name: NamespaceInUrl) -> dict[str, Any]:
    """Return `boundaries` and `numBundles`; beyond Pulsar, `bundles` with the owner and the load of each."""
    found = await services.admin.brokers.bundles(name)
    return {"boundaries": found["boundaries"], "numBundles": len(found["bundles"]), "bundles": found["bundles"]}


@router.put(f"{NAMESPACE}/unload", **NO_CONTENT, summary="Unload a namespace")
async def unload_namespace(services: ServicesDep, name: NamespaceInUrl) -> None:
    """Make the owners give the namespace's bundles away; clients find their topics again by themselves."""
    await services.admin.brokers.unload_namespace(name)


@router.put(f"{NAMESPACE}/{{bundle}}/unload", **NO_CONTENT, summary="Unload a bundle")
async def unload_bundle(services: ServicesDep, name: NamespaceInUrl, bundle: str) -> None:
    """Make the owner give one bundle away, such as `0x40000000_0x80000000`."""
    await services.admin.brokers.unload_bundle(name, bundle)


@router.put(f"{NAMESPACE}/{{bundle}}/split", **NO_CONTENT, summary="Split a bundle")
async def split_bundle(
    services: ServicesDep,
    name: NamespaceInUrl,
    bundle: str,
    unload: Annotated[bool, Query(description="Make the owner give both halves away at once")] = False,
    boundary: Annotated[str | None, Query(description="Beyond Pulsar: where the second half begins")] = None,
) -> None:
    """Split a bundle at its owner, which goes on serving both halves.

    `LARGEST` is the bundle with most topics, `HOT` that with most messages.
    """
    if bundle in _BUNDLE_BY:
        rows = (await services.admin.brokers.bundles(name))["bundles"]
        bundle = max(rows, key=lambda row: row[_BUNDLE_BY[bundle]] or 0)["name"]
    halves = await services.admin.brokers.split_bundle(name, bundle, boundary)
    if unload:
        for half in halves:
            await services.admin.brokers.unload_bundle(name, half)


def _text(value: str | None) -> Response:
    return Response(status_code=204) if value is None else PlainTextResponse(value)


def _tenant_info(services: Services, body: Any) -> tuple[list[str], list[str]]:
    """Return the roles and clusters that a body gives a tenant.

    Raises:
        PreconditionError: there is no such cluster.
        UnacceptableFieldError: a field has another form.
    """
    given = object_of(body or {}, "tenant")
    lists = []
    for name in ("adminRoles", "allowedClusters"):
        items = given.get(name) or []
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise UnacceptableFieldError(f"{name} must be a list of texts", field=name)
        lists.append(items)
    unknown = sorted(set(lists[1]) - {services.config.cluster_name})
    if unknown:
        raise PreconditionError(
            f"there is no cluster {unknown[0]}", field="allowedClusters", limit=services.config.cluster_name
        )
    return lists[0], lists[1]
