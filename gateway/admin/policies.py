"""Pulsar's administrative REST interface for the policies of namespaces and of topics: one set of endpoints for all
policies, over the table of ``policy_shapes.py``.

A body of ``null``, or none, removes a policy, as in Pulsar. A policy that is not set is answered with 204 and no body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from heliograph.base.errors import MalformedJsonError, NotFoundError, UnsupportedError
from heliograph.gateway.admin.backlog_quotas import AGE, QUOTA_FIELDS, SIZE, quota_parsed, quotas_shown
from heliograph.gateway.admin.not_offered import NOT_OFFERED, NOTHING_SET
from heliograph.gateway.admin.policies_object import check_clusters, check_quota
from heliograph.gateway.admin.policy_shapes import NAMESPACE_POLICIES, TOPIC_POLICIES, PolicyShape
from heliograph.gateway.admin.routes import NAMESPACE, NO_CONTENT, OR_NO_CONTENT, NamespaceInUrl, full_name
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, json_body
from heliograph.gateway.shapes.topics import PersistentTopicInUrl
from heliograph.gateway.shapes.url_segments import decoded
from heliograph.protocol.topic_name import TopicName

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
REPLICATION = "replication"
# Lists of clusters, of which there is one, with the policies that say whether it was named.
_CLUSTERS = {REPLICATION: "names_cluster", "allowedClusters": "allows_cluster"}
_SET_BY_NO_BODY = ("dispatcherPauseOnAckStatePersistent",)
_ANTI_AFFINITY = "antiAffinity"  # a path of Pulsar has it where that of a policy has the namespace
_SUBSCRIPTION_RATE = TOPIC_POLICIES["subscriptionDispatchRate"]
_BUNDLE = re.compile("0x[0-9a-f]{8}_0x[0-9a-f]{8}", re.IGNORECASE)

router = APIRouter(
    tags=["policies"],
    responses={
        404: {"model": ErrorBody, "description": "No such namespace, topic or policy"},
        412: {"model": ErrorBody, "description": "A value that is too low, or contradicts another policy"},
        501: {"model": ErrorBody, "description": "A policy of Pulsar that is not offered, with the reason"},
    },
)


def _documented(shapes: Mapping[str, PolicyShape]) -> dict[str, Any]:
    """Return the ``openapi_extra`` of an endpoint that takes any policy's body."""
    examples = {name: {"value": shape.example} for name, shape in sorted(shapes.items())}
    return {"requestBody": {"content": {"application/json": {"schema": {}, "examples": examples}}}}


NamespacePolicy = Annotated[str, Path(description="One of " + ", ".join(f"`{name}`" for name in NAMESPACE_POLICIES))]
TopicPolicy = Annotated[str, Path(description="One of " + ", ".join(f"`{name}`" for name in TOPIC_POLICIES))]
Applied = Annotated[bool, Query(description="The value in effect, instead of the one that the topic or namespace sets")]
IsGlobal = Annotated[bool, Query(alias="isGlobal", description="Must be false: there is one cluster")]
QuotaType = Annotated[str, Query(alias="backlogQuotaType", pattern=f"^({SIZE}|{AGE})$", description="Which of the two")]


@router.get(f"{NAMESPACE}/backlogQuotaMap", summary="A namespace's backlog quotas")
async def namespace_quotas(services: ServicesDep, name: NamespaceInUrl) -> dict[str, Any]:
    """Return the quotas by type; a type without a quota is left out."""
    return quotas_shown(await services.admin.namespaces.policies(name))


@router.post(f"{NAMESPACE}/backlogQuota", **NO_CONTENT, summary="Set a namespace's backlog quota")
async def set_namespace_quota(
    request: Request, services: ServicesDep, name: NamespaceInUrl, kind: QuotaType = "destination_storage"
) -> None:
    """Set `{"limitSize": bytes, "limitTime": seconds, "policy": "producer_request_hold"}`; each type has its policy."""
    body = await json_body(request)
    if body is None:
        await remove_namespace_quota(services, name, kind)
    else:
        await _set_of_namespace(services, name, quota_parsed(body, kind))


@router.delete(f"{NAMESPACE}/backlogQuota", **NO_CONTENT, summary="Remove a namespace's backlog quota")
async def remove_namespace_quota(
    services: ServicesDep, name: NamespaceInUrl, kind: QuotaType = "destination_storage"
) -> None:
    """Reset the quota to the default, which is none."""
    await services.admin.namespaces.remove_policies(name, [QUOTA_FIELDS[kind]])


@router.get(f"{TOPIC}/backlogQuotaMap", summary="A topic's backlog quotas")
async def topic_quotas(services: ServicesDep, topic: PersistentTopicInUrl, applied: Applied = False) -> dict[str, Any]:
    """Return the quotas by type; those that the topic itself does not set are left out, unless `applied`."""
    values = await services.admin.namespaces.topic_policies(str(topic), True)
    if applied:
        return quotas_shown(values)
    own = await services.admin.namespaces.topic_policies(str(topic))
    absent = {field: -1 for field in QUOTA_FIELDS.values() if field not in own}
    return quotas_shown({**values, **absent})


@router.post(f"{TOPIC}/backlogQuota", **NO_CONTENT, summary="Set a topic's backlog quota")
async def set_topic_quota(
    request: Request, services: ServicesDep, topic: PersistentTopicInUrl, kind: QuotaType = "destination_storage"
) -> None:
    """Set a quota of the topic, in the form of a namespace's."""
    body = await json_body(request)
    if body is None:
        await remove_topic_quota(services, topic, kind)
    else:
        await _set_of_topic(services, topic, quota_parsed(body, kind))


@router.delete(f"{TOPIC}/backlogQuota", **NO_CONTENT, summary="Remove a topic's backlog quota")
async def remove_topic_quota(
    services: ServicesDep, topic: PersistentTopicInUrl, kind: QuotaType = "destination_storage"
) -> None:
    """Remove the topic's own value, so that the namespace's applies."""
    await services.admin.namespaces.remove_topic_policies(str(topic), [QUOTA_FIELDS[kind]])


@router.get(f"{NAMESPACE}/persistence/bookieAffinity", include_in_schema=False)
@router.post(f"{NAMESPACE}/persistence/bookieAffinity", include_in_schema=False)
@router.delete(f"{NAMESPACE}/persistence/bookieAffinity", include_in_schema=False)
async def bookie_affinity(request: Request, services: ServicesDep, name: NamespaceInUrl) -> Response:
    """Answer that there are no groups of bookies, and refuse one."""
    await services.admin.namespaces.policies(name)
    return _not_offered("bookieAffinity", await _is_setting(request))


@router.get(f"{TOPIC}/{{subscription}}/dispatchRate", **OR_NO_CONTENT, summary="The delivery rate of one subscription")
async def subscription_rate(
    services: ServicesDep, topic: PersistentTopicInUrl, subscription: str, applied: Applied = False
) -> Response:
    """Return the rate that was set for one subscription, 204 when none was; with `applied` the one that holds."""
    name = decoded(subscription)
    if not applied and not await services.admin.namespaces.topic_policies(str(topic), False, name):
        return Response(status_code=204)
    values = await services.admin.namespaces.topic_policies(str(topic), True, name)
    return JSONResponse(_SUBSCRIPTION_RATE.shown(values))


@router.post(f"{TOPIC}/{{subscription}}/dispatchRate", **NO_CONTENT, summary="Set the delivery rate of a subscription",
             openapi_extra=_documented({"dispatchRate": _SUBSCRIPTION_RATE}))  # fmt: skip
async def set_subscription_rate(
    request: Request,
    services: ServicesDep,
    topic: PersistentTopicInUrl,
    subscription: str,
    is_global: IsGlobal = False,
) -> None:
    """Set the rate of one subscription instead of the topic's `subscriptionDispatchRate`, or remove it where the body
    is null. The subscription need not exist."""
    body, name = await json_body(request), decoded(subscription)
    _check_local(is_global)
    if body is None:
        await remove_subscription_rate(services, topic, subscription)
    else:
        await services.admin.namespaces.set_topic_policies(str(topic), _SUBSCRIPTION_RATE.parsed(body), name)


@router.delete(f"{TOPIC}/{{subscription}}/dispatchRate", **NO_CONTENT, summary="Remove the rate of a subscription")
async def remove_subscription_rate(services: ServicesDep, topic: PersistentTopicInUrl, subscription: str) -> None:
    """Remove the rate of one subscription, so that the topic's holds."""
    fields, name = _SUBSCRIPTION_RATE.fields, decoded(subscription)
    await services.admin.namespaces.remove_topic_policies(str(topic), fields, name)


@router.delete(f"{TOPIC}/policies", **NO_CONTENT, summary="Remove all policies of a topic")
async def remove_topic_policies(services: ServicesDep, topic: PersistentTopicInUrl) -> None:
    """Remove every value that the topic itself sets, so that the namespace's apply."""
    own = await services.admin.namespaces.topic_policies(str(topic))
    await services.admin.namespaces.remove_topic_policies(str(topic), sorted(own))
    for subscription, values in (await services.admin.namespaces.subscription_policies(str(topic))).items():
        await services.admin.namespaces.remove_topic_policies(str(topic), sorted(values), subscription)


@router.post(f"{NAMESPACE}/resourcegroup/{{group}}", include_in_schema=False)
async def resource_group(services: ServicesDep, name: NamespaceInUrl, group: str) -> Response:
    """Refuse a resource group."""
    await services.admin.namespaces.policies(name)
    return _not_offered("resourcegroup", is_set=True)


@router.get(f"{NAMESPACE}/{{policy}}", **OR_NO_CONTENT, summary="A namespace's policy")
async def namespace_policy(
    services: ServicesDep, tenant: str, namespace: str, policy: NamespacePolicy, applied: Applied = False
) -> Response:
    """Return what the namespace itself sets in Pulsar's shape, or 204; with `applied` the value that holds."""
    name = full_name(tenant, namespace)
    if namespace == _ANTI_AFFINITY and decoded(tenant) == services.config.cluster_name:
        return JSONResponse([])  # the namespaces of a group: none can be put into one
    own = await services.admin.namespaces.policies(name, True)
    if policy in _CLUSTERS:
        is_named = policy == REPLICATION or applied or own.get(_CLUSTERS[policy])
        return JSONResponse([services.config.cluster_name] if is_named else [])
    if policy in NOT_OFFERED:
        return _not_offered(policy, is_set=False)
    shape = _shape(NAMESPACE_POLICIES, policy)
    if applied or any(field in own for field in shape.fields):
        return JSONResponse(shape.shown(await services.admin.namespaces.policies(name)))
    return Response(status_code=204) if shape.unset is None else JSONResponse(shape.unset)


@router.post(f"{NAMESPACE}/{{policy}}", **NO_CONTENT, summary="Set a namespace's policy",
             openapi_extra=_documented(NAMESPACE_POLICIES))  # fmt: skip
@router.put(f"{NAMESPACE}/{{policy}}", **NO_CONTENT, include_in_schema=False)
async def set_namespace_policy(
    request: Request, services: ServicesDep, name: NamespaceInUrl, policy: NamespacePolicy
) -> None:
    """Set a policy, or remove it where the body is null. Loaded topics apply it within moments, unless they override
    it."""
    body = await _body(request, policy)
    if policy in NOT_OFFERED:
        await services.admin.namespaces.policies(name)
        _check_unsettable(policy, body)
        return
    if policy in _CLUSTERS:
        check_clusters([] if body is None else body, policy, services.config.cluster_name)
        if policy == REPLICATION:
            await services.admin.namespaces.policies(name)  # which is always in the one cluster
        elif body:
            await services.admin.namespaces.set_policies(name, {_CLUSTERS[policy]: True})
        else:
            await services.admin.namespaces.remove_policies(name, [_CLUSTERS[policy]])
        return
    shape = _shape(NAMESPACE_POLICIES, policy)
    values = {} if body is None else shape.parsed(body)
    if values:
        await _set_of_namespace(services, name, values)
    else:
        await services.admin.namespaces.remove_policies(name, shape.fields)


@router.delete(f"{NAMESPACE}/{{policy}}", **NO_CONTENT, summary="Remove a namespace's policy")
async def remove_namespace_policy(services: ServicesDep, tenant: str, namespace: str, policy: NamespacePolicy) -> None:
    """Reset a policy to its default."""
    name = full_name(tenant, namespace)
    if policy in NOT_OFFERED:
        await services.admin.namespaces.policies(name)
        return  # none is ever set
    if policy in _CLUSTERS:
        await services.admin.namespaces.remove_policies(name, [_CLUSTERS[policy]])
        return
    if _BUNDLE.fullmatch(policy):
        raise UnsupportedError("a bundle cannot be deleted: delete topics, or the namespace", field="bundle")
    await services.admin.namespaces.remove_policies(name, _shape(NAMESPACE_POLICIES, policy).fields)


@router.get(f"{TOPIC}/{{policy}}", **OR_NO_CONTENT, summary="A topic's policy")
async def topic_policy(
    services: ServicesDep,
    topic: PersistentTopicInUrl,
    policy: TopicPolicy,
    applied: Applied = False,
    is_global: IsGlobal = False,
) -> Response:
    """Return what the topic itself sets, 204 when nothing; with `applied` the value that applies to it."""
    own = await services.admin.namespaces.topic_policies(str(topic))
    if policy == REPLICATION:
        is_named = applied or own.get(_CLUSTERS[policy])
        return JSONResponse([services.config.cluster_name]) if is_named else Response(status_code=204)
    if policy in NOT_OFFERED:
        return _not_offered(policy, is_set=False)
    shape = _shape(TOPIC_POLICIES, policy)
    if not applied and (is_global or not any(field in own for field in shape.fields)):
        return Response(status_code=204)
    return JSONResponse(shape.shown(await services.admin.namespaces.topic_policies(str(topic), True)))


@router.post(f"{TOPIC}/{{policy}}", **NO_CONTENT, summary="Set a topic's policy",
             openapi_extra=_documented(TOPIC_POLICIES))  # fmt: skip
@router.put(f"{TOPIC}/{{policy}}", **NO_CONTENT, include_in_schema=False)
async def set_topic_policy(
    request: Request,
    services: ServicesDep,
    topic: PersistentTopicInUrl,
    policy: TopicPolicy,
    is_global: IsGlobal = False,
) -> None:
    """Set a policy for all partitions of the topic instead of the namespace's, or remove it where the body is null."""
    body = await _body(request, policy)
    _check_local(is_global)
    if policy in NOT_OFFERED:
        await services.admin.namespaces.topic_policies(str(topic))
        _check_unsettable(policy, body)
        return
    if policy == REPLICATION:
        check_clusters([] if body is None else body, policy, services.config.cluster_name)
        if body:
            await services.admin.namespaces.set_topic_policies(str(topic), {_CLUSTERS[policy]: True})
        else:
            await services.admin.namespaces.remove_topic_policies(str(topic), [_CLUSTERS[policy]])
        return
    shape = _shape(TOPIC_POLICIES, policy)
    values = {} if body is None else shape.parsed(body)
    if values:
        await _set_of_topic(services, topic, values)
    else:
        await services.admin.namespaces.remove_topic_policies(str(topic), shape.fields)


@router.delete(f"{TOPIC}/{{policy}}", **NO_CONTENT, summary="Remove a topic's policy")
async def remove_topic_policy(services: ServicesDep, topic: PersistentTopicInUrl, policy: TopicPolicy) -> None:
    """Remove the topic's own value, so that the namespace's applies."""
    if policy in NOT_OFFERED:
        await services.admin.namespaces.topic_policies(str(topic))
        return  # none is ever set
    fields = (_CLUSTERS[policy],) if policy == REPLICATION else _shape(TOPIC_POLICIES, policy).fields
    await services.admin.namespaces.remove_topic_policies(str(topic), fields)


async def _set_of_namespace(services: Services, namespace: str, values: Mapping[str, Any]) -> None:
    check_quota({**await services.admin.namespaces.policies(namespace), **values})
    await services.admin.namespaces.set_policies(namespace, values)


async def _set_of_topic(services: Services, topic: TopicName, values: Mapping[str, Any]) -> None:
    check_quota({**await services.admin.namespaces.topic_policies(str(topic), True), **values})
    await services.admin.namespaces.set_topic_policies(str(topic), values)


async def _body(request: Request, policy: str) -> Any:
    """Return the value that a request sets; null removes it. Some clients give the time to live in the query.

    Whatever a request says of a policy that is not offered is a value, if it is not null.
    """
    if policy in NOT_OFFERED:
        try:
            body = await json_body(request)
        except MalformedJsonError:
            return ...
        return ... if body is None and policy in _SET_BY_NO_BODY else body
    body = await json_body(request)
    return request.query_params.get(policy) if body is None and policy == "messageTTL" else body


async def _is_setting(request: Request) -> bool:
    return request.method in ("POST", "PUT") and await json_body(request) is not None


def _check_unsettable(policy: str, body: Any) -> None:
    """Raise unless a body asks for what there is anyway."""
    if body is not None and body != NOTHING_SET.get(policy):
        _not_offered(policy, is_set=True)


def _check_local(is_global: bool) -> None:
    if is_global:
        raise UnsupportedError(
            "policies of all clusters are not offered, there is one: leave isGlobal out", field="isGlobal"
        )


def _not_offered(policy: str, is_set: bool) -> Response:
    """Return the answer for a policy that is never set.

    Raises:
        UnsupportedError: it is being set.
    """
    if is_set:
        raise UnsupportedError(f"{policy} is not offered: {NOT_OFFERED[policy]}", field="policy")
    return JSONResponse(NOTHING_SET[policy]) if policy in NOTHING_SET else Response(status_code=204)


def _shape(shapes: Mapping[str, PolicyShape], name: str) -> PolicyShape:
    if name in shapes:
        return shapes[name]
    raise NotFoundError(f"there is no policy {name}", field="policy", limit=", ".join(sorted(shapes)))
