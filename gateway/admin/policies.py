"""Pulsar's administrative REST interface for the policies of namespaces and of topics: one set of endpoints for all
policies, over the table of ``policy_shapes.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from heliograph.base.errors import NotFoundError, UnsupportedError
from heliograph.gateway.admin.policy_shapes import (
    NAMESPACE_POLICIES,
    NOT_OFFERED,
    QUOTA_TYPES,
    TOPIC_POLICIES,
    PolicyShape,
    quota_conflict,
    quota_parsed,
    quotas_shown,
)
from heliograph.gateway.admin.routes import NAMESPACE, NO_CONTENT, full_name
from heliograph.gateway.errors import PreconditionError
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, json_body
from heliograph.gateway.shapes.topics import PersistentTopicInUrl
from heliograph.protocol.topic_name import TopicName

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"

router = APIRouter(
    tags=["policies"],
    responses={
        404: {"model": ErrorBody, "description": "No such namespace, topic or policy"},
        412: {"model": ErrorBody, "description": "It contradicts another policy"},
    },
)


def _documented(shapes: Mapping[str, PolicyShape]) -> dict[str, Any]:
    """Return the ``openapi_extra`` of an endpoint that takes any policy's body."""
    examples = {name: {"value": shape.example} for name, shape in sorted(shapes.items())}
    return {"requestBody": {"content": {"application/json": {"schema": {}, "examples": examples}}}}


NamespacePolicy = Annotated[str, Path(description="One of " + ", ".join(f"`{name}`" for name in NAMESPACE_POLICIES))]
TopicPolicy = Annotated[str, Path(description="One of " + ", ".join(f"`{name}`" for name in TOPIC_POLICIES))]
Applied = Annotated[bool, Query(description="The value that applies, instead of what the topic itself sets")]
QuotaType = Annotated[
    str, Query(alias="backlogQuotaType", pattern="^(destination_storage|message_age)$", description="Which of the two")
]


@router.get(f"{NAMESPACE}/backlogQuotaMap", summary="A namespace's backlog quotas")
async def namespace_quotas(services: ServicesDep, tenant: str, namespace: str) -> dict[str, Any]:
    """Return the quotas by type; a type without a quota is left out."""
    return quotas_shown(await services.admin.namespaces.policies(full_name(tenant, namespace)))


@router.post(f"{NAMESPACE}/backlogQuota", **NO_CONTENT, summary="Set a namespace's backlog quota")
async def set_namespace_quota(
    request: Request, services: ServicesDep, tenant: str, namespace: str, kind: QuotaType = "destination_storage"
) -> None:
    """Set `{"limitSize": bytes, "limitTime": seconds, "policy": "producer_request_hold"}`; both types share it."""
    values = quota_parsed(await json_body(request), kind)
    await _set_of_namespace(services, full_name(tenant, namespace), values)


@router.delete(f"{NAMESPACE}/backlogQuota", **NO_CONTENT, summary="Remove a namespace's backlog quota")
async def remove_namespace_quota(
    services: ServicesDep, tenant: str, namespace: str, kind: QuotaType = "destination_storage"
) -> None:
    """Reset the quota to the default, which is none."""
    await services.admin.namespaces.remove_policies(full_name(tenant, namespace), [QUOTA_TYPES[kind]])


@router.get(f"{TOPIC}/backlogQuotaMap", summary="A topic's backlog quotas")
async def topic_quotas(services: ServicesDep, topic: PersistentTopicInUrl, applied: Applied = False) -> dict[str, Any]:
    """Return the quotas by type; those that the topic itself does not set are left out, unless `applied`."""
    values = await services.admin.namespaces.topic_policies(str(topic), True)
    if applied:
        return quotas_shown(values)
    own = await services.admin.namespaces.topic_policies(str(topic))
    absent = {field: -1 for field in QUOTA_TYPES.values() if field not in own}
    return quotas_shown({**values, **absent})


@router.post(f"{TOPIC}/backlogQuota", **NO_CONTENT, summary="Set a topic's backlog quota")
async def set_topic_quota(
    request: Request, services: ServicesDep, topic: PersistentTopicInUrl, kind: QuotaType = "destination_storage"
) -> None:
    """Set a quota of the topic, in the form of a namespace's."""
    await _set_of_topic(services, topic, quota_parsed(await json_body(request), kind))


@router.delete(f"{TOPIC}/backlogQuota", **NO_CONTENT, summary="Remove a topic's backlog quota")
async def remove_topic_quota(
    services: ServicesDep, topic: PersistentTopicInUrl, kind: QuotaType = "destination_storage"
) -> None:
    """Remove the topic's own value, so that the namespace's applies."""
    await services.admin.namespaces.remove_topic_policies(str(topic), [QUOTA_TYPES[kind]])


@router.get(f"{NAMESPACE}/{{policy}}", summary="A namespace's policy")
async def namespace_policy(services: ServicesDep, tenant: str, namespace: str, policy: NamespacePolicy) -> Response:
    """Return the value that applies, set or by default, in Pulsar's shape."""
    shape = _shape(NAMESPACE_POLICIES, policy)
    return JSONResponse(shape.shown(await services.admin.namespaces.policies(full_name(tenant, namespace))))


@router.post(f"{NAMESPACE}/{{policy}}", **NO_CONTENT, summary="Set a namespace's policy",
             openapi_extra=_documented(NAMESPACE_POLICIES))  # fmt: skip
@router.put(f"{NAMESPACE}/{{policy}}", **NO_CONTENT, include_in_schema=False)
async def set_namespace_policy(
    request: Request, services: ServicesDep, tenant: str, namespace: str, policy: NamespacePolicy
) -> None:
    """Set a policy. Loaded topics apply it within moments, unless they override it."""
    values = _shape(NAMESPACE_POLICIES, policy).parsed(await json_body(request))
    await _set_of_namespace(services, full_name(tenant, namespace), values)


@router.delete(f"{NAMESPACE}/{{policy}}", **NO_CONTENT, summary="Remove a namespace's policy")
async def remove_namespace_policy(services: ServicesDep, tenant: str, namespace: str, policy: NamespacePolicy) -> None:
    """Reset a policy to its default."""
    shape = _shape(NAMESPACE_POLICIES, policy)
    await services.admin.namespaces.remove_policies(full_name(tenant, namespace), shape.fields)


@router.get(f"{TOPIC}/{{policy}}", summary="A topic's policy")
async def topic_policy(
    services: ServicesDep, topic: PersistentTopicInUrl, policy: TopicPolicy, applied: Applied = False
) -> Response:
    """Return what the topic itself sets, 204 when nothing; with `applied` the value that applies to it."""
    shape = _shape(TOPIC_POLICIES, policy)
    if not applied:
        own = await services.admin.namespaces.topic_policies(str(topic))
        if not any(field in own for field in shape.fields):
            return Response(status_code=204)
    return JSONResponse(shape.shown(await services.admin.namespaces.topic_policies(str(topic), True)))


@router.post(f"{TOPIC}/{{policy}}", **NO_CONTENT, summary="Set a topic's policy",
             openapi_extra=_documented(TOPIC_POLICIES))  # fmt: skip
@router.put(f"{TOPIC}/{{policy}}", **NO_CONTENT, include_in_schema=False)
async def set_topic_policy(
    request: Request, services: ServicesDep, topic: PersistentTopicInUrl, policy: TopicPolicy
) -> None:
    """Set a policy for all partitions of the topic, instead of the namespace's."""
    await _set_of_topic(services, topic, _shape(TOPIC_POLICIES, policy).parsed(await json_body(request)))


@router.delete(f"{TOPIC}/{{policy}}", **NO_CONTENT, summary="Remove a topic's policy")
async def remove_topic_policy(services: ServicesDep, topic: PersistentTopicInUrl, policy: TopicPolicy) -> None:
    """Remove the topic's own value, so that the namespace's applies."""
    shape = _shape(TOPIC_POLICIES, policy)
    await services.admin.namespaces.remove_topic_policies(str(topic), shape.fields)


async def _set_of_namespace(services: Services, namespace: str, values: Mapping[str, Any]) -> None:
    _check_quota({**await services.admin.namespaces.policies(namespace), **values})
    await services.admin.namespaces.set_policies(namespace, values)


async def _set_of_topic(services: Services, topic: TopicName, values: Mapping[str, Any]) -> None:
    _check_quota({**await services.admin.namespaces.topic_policies(str(topic), True), **values})
    await services.admin.namespaces.set_topic_policies(str(topic), values)


def _check_quota(values: Mapping[str, Any]) -> None:
    conflict = quota_conflict(values)
    if conflict is not None:
        raise PreconditionError(f"{conflict}: raise one or lower the other", field="retention,backlogQuota")


def _shape(shapes: Mapping[str, PolicyShape], name: str) -> PolicyShape:
    if name in shapes:
        return shapes[name]
    if name in NOT_OFFERED:
        raise UnsupportedError(f"{name} is not offered: {NOT_OFFERED[name]}", field="policy")
    raise NotFoundError(f"there is no policy {name}", field="policy", limit=", ".join(sorted(shapes)))
