"""Pulsar's administrative REST interface for tenants, namespaces and their bundles."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import PreconditionError, UnacceptableFieldError
from gateway.policy_shapes import NAMESPACE_POLICIES, number_of, object_of, policies_shown
from gateway.schemas import ErrorBody, json_body
from gateway.services import Services, ServicesDep
from gateway.topics import NON_PERSISTENT, PERSISTENT, topic_names_in
from gateway.url_segments import decoded
from heliograph.protocol.topic_name import DOMAINS

TENANT = "/admin/v2/tenants/{tenant}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
# Fields of Pulsar's Policies object that are one of the namespace policies, which have shapes.
_IN_POLICIES = {
    "retention_policies": "retention",
    "message_ttl_in_seconds": "messageTTL",
    "persistence": "persistence",
    "deduplicationEnabled": "deduplication",
    "autoTopicCreationOverride": "autoTopicCreation",
    "autoSubscriptionCreationOverride": "autoSubscriptionCreation",
    "max_producers_per_topic": "maxProducersPerTopic",
    "max_consumers_per_topic": "maxConsumersPerTopic",
    "max_consumers_per_subscription": "maxConsumersPerSubscription",
    "max_subscriptions_per_topic": "maxSubscriptionsPerTopic",
    "inactive_topic_policies": "inactiveTopicPolicies",
    "compaction_threshold": "compactionThreshold",
    "schema_compatibility_strategy": "schemaCompatibilityStrategy",
    "schema_validation_enforced": "schemaValidationEnforced",
    "is_allow_auto_update_schema": "isAllowAutoUpdateSchema",
}

router = APIRouter(
    tags=["namespaces"],
    responses={
        404: {"model": ErrorBody, "description": "No such tenant, namespace or bundle"},
        409: {"model": ErrorBody, "description": "It exists already, or something is in it"},
    },
)
_object_body = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
Force = Annotated[bool, Query(description="Also with everything that is in it")]


@router.get("/admin/v2/tenants", summary="List tenants")
async def tenants(services: ServicesDep) -> list[str]:
    """Names of all tenants."""
    return list(await services.admin.namespaces.tenants())


@router.get(TENANT, summary="A tenant")
async def tenant_of(services: ServicesDep, tenant: str) -> dict[str, Any]:
    """Its roles and clusters."""
    found = await services.admin.namespaces.tenant(decoded(tenant))
    clusters = found["allowed_clusters"] or [services.config.cluster_name]
    return {"adminRoles": found["admin_roles"], "allowedClusters": clusters}


@router.put(TENANT, status_code=204, summary="Create a tenant", openapi_extra=_object_body)
async def create_tenant(request: Request, services: ServicesDep, tenant: str) -> Response:
    """`{"adminRoles": [], "allowedClusters": ["standalone"]}`"""
    roles, clusters = _tenant_info(services, await json_body(request))
    await services.admin.namespaces.create_tenant(decoded(tenant), roles, clusters)
    return Response(status_code=204)


@router.post(TENANT, status_code=204, summary="Change a tenant", openapi_extra=_object_body)
async def update_tenant(request: Request, services: ServicesDep, tenant: str) -> Response:
    """Body as for creating."""
    roles, clusters = _tenant_info(services, await json_body(request))
    await services.admin.namespaces.update_tenant(decoded(tenant), roles, clusters)
    return Response(status_code=204)


@router.delete(TENANT, status_code=204, summary="Delete a tenant")
async def delete_tenant(services: ServicesDep, tenant: str, force: Force = False) -> Response:
    """409 while it has namespaces, unless `force` deletes those with all their topics."""
    name = decoded(tenant)
    if force:
        for namespace in await services.admin.namespaces.list(name):
            await services.admin.namespaces.delete(namespace, True)
    await services.admin.namespaces.delete_tenant(name)
    return Response(status_code=204)


@router.get("/admin/v2/namespaces/{tenant}", summary="List namespaces")
async def namespaces(services: ServicesDep, tenant: str) -> list[str]:
    """`tenant/namespace` of each."""
    return list(await services.admin.namespaces.list(decoded(tenant)))


@router.get(NAMESPACE, summary="A namespace")
async def namespace_of(services: ServicesDep, tenant: str, namespace: str) -> dict[str, Any]:
    """Its policies."""
    values = await services.admin.namespaces.policies(full_name(tenant, namespace))
    return policies_shown(values, services.config.cluster_name)


@router.put(NAMESPACE, status_code=204, summary="Create a namespace", openapi_extra=_object_body)
async def create_namespace(request: Request, services: ServicesDep, tenant: str, namespace: str) -> Response:
    """An empty body, or Pulsar's `Policies`; `{"bundles": {"numBundles": 16}}` sets over how many its topics spread."""
    body = object_of(await json_body(request) or {}, "policies")
    bundles = body.get("bundles")
    count = None
    if bundles is not None:
        count = number_of(object_of(bundles, "bundles").get("numBundles"), "numBundles", 1)
    values: dict[str, Any] = {}
    for field, policy in _IN_POLICIES.items():
        if body.get(field) is not None:
            values |= NAMESPACE_POLICIES[policy].parsed(body[field])
    await services.admin.namespaces.create(full_name(tenant, namespace), count, values)
    return Response(status_code=204)


@router.delete(NAMESPACE, status_code=204, summary="Delete a namespace")
async def delete_namespace(services: ServicesDep, tenant: str, namespace: str, force: Force = False) -> Response:
    """409 while it has topics, unless `force` deletes those."""
    await services.admin.namespaces.delete(full_name(tenant, namespace), force)
    return Response(status_code=204)


@router.get(f"{NAMESPACE}/topics", summary="List a namespace's topics")
async def namespace_topics(
    services: ServicesDep,
    tenant: str,
    namespace: str,
    mode: Annotated[str, Query(pattern="^(PERSISTENT|NON_PERSISTENT|ALL)$")] = "PERSISTENT",
) -> list[str]:
    """Full names of the topics, partitions one by one; stock clients ask this for regex subscriptions."""
    domains = DOMAINS if mode == "ALL" else (NON_PERSISTENT if mode == "NON_PERSISTENT" else PERSISTENT,)
    return [name for domain in domains for name in await topic_names_in(services.admin, tenant, namespace, domain)]


@router.get(f"{NAMESPACE}/bundles", summary="Bundles")
async def bundles_of(services: ServicesDep, tenant: str, namespace: str) -> dict[str, Any]:
    """`boundaries` and `numBundles`; beyond Pulsar, `bundles` with the owner and the load of each."""
    found = await services.admin.brokers.bundles(full_name(tenant, namespace))
    return {"boundaries": found["boundaries"], "numBundles": len(found["bundles"]), "bundles": found["bundles"]}


@router.put(f"{NAMESPACE}/unload", status_code=204, summary="Unload a namespace")
async def unload_namespace(services: ServicesDep, tenant: str, namespace: str) -> Response:
    """Its bundles are given away by their owners; clients find their topics again by themselves."""
    await services.admin.brokers.unload_namespace(full_name(tenant, namespace))
    return Response(status_code=204)


@router.put(f"{NAMESPACE}/{{bundle}}/unload", status_code=204, summary="Unload a bundle")
async def unload_bundle(services: ServicesDep, tenant: str, namespace: str, bundle: str) -> Response:
    """As for a namespace, for one bundle such as `0x40000000_0x80000000`."""
    await services.admin.brokers.unload_bundle(full_name(tenant, namespace), bundle)
    return Response(status_code=204)


@router.put(f"{NAMESPACE}/{{bundle}}/split", status_code=204, summary="Split a bundle")
async def split_bundle(
    services: ServicesDep,
    tenant: str,
    namespace: str,
    bundle: str,
    unload: Annotated[bool, Query(description="Have the halves given away at once")] = False,
    boundary: Annotated[str | None, Query(description="Beyond Pulsar: where the second half begins")] = None,
) -> Response:
    """Its owner goes on serving both halves."""
    name = full_name(tenant, namespace)
    halves = await services.admin.brokers.split_bundle(name, bundle, boundary)
    if unload:
        for half in halves:
            await services.admin.brokers.unload_bundle(name, half)
    return Response(status_code=204)


def full_name(tenant: str, namespace: str) -> str:
    """``tenant/namespace`` of two URL segments."""
    return f"{decoded(tenant)}/{decoded(namespace)}"


def _tenant_info(services: Services, body: Any) -> tuple[list[str], list[str]]:
    """Roles and clusters of a tenant.

    Raises:
        PreconditionError: a cluster that there is not.
        UnacceptableFieldError.
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
