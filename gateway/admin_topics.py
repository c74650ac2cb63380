"""Pulsar's administrative REST interface for persistent topics and their subscriptions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import MethodNotAllowedError
from gateway.schemas import ErrorBody, json_body
from gateway.services import Services, ServicesDep
from gateway.topics import ADMIN_TOPIC, SubscriptionInUrl, TopicInUrl, topic_names_in, topics_in
from heliograph.errors import (
    BadRequestError,
    ConflictError,
    TopicBusyError,
    TopicNotFoundError,
)
from heliograph.protocol.topic_name import TopicName

PARTITIONS_MAX = 10_000
TOPIC = ADMIN_TOPIC

router = APIRouter(
    tags=["topics"],
    responses={
        404: {"model": ErrorBody, "description": "No such topic or subscription"},
        409: {"model": ErrorBody, "description": "It exists already, or is in use"},
        412: {"model": ErrorBody, "description": "A name that is not allowed, or something is still attached"},
    },
)
_integer_body = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "integer"}}}}}
_position_body = {"requestBody": {"content": {"application/json": {"schema": {"type": ["string", "object"]}}}}}
_properties_body = {
    "requestBody": {"content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}}
}


@router.get("/admin/v2/{domain:topic_domain}/{tenant}/{namespace}", summary="List topics")
async def list_topics(services: ServicesDep, domain: str, tenant: str, namespace: str) -> list[str]:
    """Full names of the namespace's topics; every partition of a partitioned topic by itself."""
    return await topic_names_in(services.admin, tenant, namespace, domain)


@router.get("/admin/v2/{domain:topic_domain}/{tenant}/{namespace}/partitioned", summary="List partitioned topics")
async def list_partitioned_topics(services: ServicesDep, domain: str, tenant: str, namespace: str) -> list[str]:
    """Full names of the namespace's partitioned topics."""
    found = await topics_in(services.admin, tenant, namespace, domain)
    return [str(topic) for topic, partitions in found if partitions > 0]


@router.put(TOPIC, status_code=204, summary="Create a topic", openapi_extra=_properties_body)
async def create_topic(request: Request, services: ServicesDep, topic: TopicInUrl) -> Response:
    """Create a topic without partitions.

    The optional body sets copies: `{"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}`.
    """
    body = await json_body(request)
    await services.admin.create_topic(str(topic), persistence=_persistence(body))
    return Response(status_code=204)


@router.put(f"{TOPIC}/partitions", status_code=204, summary="Create a partitioned topic", openapi_extra=_integer_body)
async def create_partitioned_topic(request: Request, services: ServicesDep, topic: TopicInUrl) -> Response:
    """Create a topic with so many partitions; the body is the number, or `{"partitions": n, "properties": {...}}`."""
    body = await json_body(request)
    await services.admin.create_topic(str(topic), _partitions(body), persistence=_persistence(body))
    return Response(status_code=204)


@router.post(f"{TOPIC}/partitions", status_code=204, summary="Add partitions", openapi_extra=_integer_body)
async def grow_partitioned_topic(request: Request, services: ServicesDep, topic: TopicInUrl) -> Response:
    """The body is the new number. Clients notice within their update interval; keys may change their partition."""
    wanted = _partitions(await json_body(request))
    if await services.admin.partitions(str(topic)) == 0:
        raise MethodNotAllowedError(f"{topic} is not partitioned", field="topic")
    await services.admin.update_partitions(str(topic), wanted)
    return Response(status_code=204)


@router.post(f"{TOPIC}/createMissedPartitions", status_code=204, summary="Create partitions that are missing")
async def create_missed_partitions(services: ServicesDep, topic: TopicInUrl) -> Response:
    """Such as were deleted one by one, or left out by a creation that was interrupted."""
    await services.admin.create_missing_partitions(str(topic))
    return Response(status_code=204)


@router.put(f"{TOPIC}/unload", status_code=204, summary="Unload a topic")
async def unload_topic(services: ServicesDep, topic: TopicInUrl) -> Response:
    """Its owner closes it; clients open it again by themselves."""
    await services.admin.unload_topic(str(topic))
    return Response(status_code=204)


@router.get(f"{TOPIC}/partitions", summary="Number of partitions")
async def partitions(
    services: ServicesDep,
    topic: TopicInUrl,
    check_auto_creation: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
) -> dict[str, Any]:
    """`{"partitions": n}`; 0 for a topic without partitions, and for one that a client would create by using it."""
    count = await services.admin.partitions(str(topic), check_auto_creation)
    return {"partitions": count, "deleted": False}


@router.delete(f"{TOPIC}/partitions", status_code=204, summary="Delete a partitioned topic")
async def delete_partitioned_topic(
    services: ServicesDep, topic: TopicInUrl, force: Annotated[bool, Query()] = False
) -> Response:
    """Delete a topic with all its partitions; `force` also with producers and subscriptions attached."""
    if await services.admin.partitions(str(topic)) == 0:
        raise TopicNotFoundError(f"{topic} is not partitioned: delete it without /partitions", field="topic")
    return await _delete(services, topic, force)


@router.delete(TOPIC, status_code=204, summary="Delete a topic")
async def delete_topic(services: ServicesDep, topic: TopicInUrl, force: Annotated[bool, Query()] = False) -> Response:
    """Delete a topic without partitions; `force` also with producers and subscriptions attached."""
    if await services.admin.partitions(str(topic)) > 0:
        raise ConflictError(f"{topic} is partitioned: delete {topic.local_name}/partitions", field="topic")
    return await _delete(services, topic, force)


@router.get(f"{TOPIC}/stats", summary="Statistics")
async def stats(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """Rates, counters, producers, subscriptions and their consumers."""
    return JSONResponse(dict(await services.admin.topic_stats(str(topic))))


@router.get(f"{TOPIC}/partitioned-stats", summary="Statistics of a partitioned topic")
async def partitioned_stats(
    services: ServicesDep,
    topic: TopicInUrl,
    per_partition: Annotated[bool, Query(alias="perPartition")] = True,
) -> JSONResponse:
    """Sums over all partitions, and each partition's own statistics."""
    count = await services.admin.partitions(str(topic))
    if count == 0:
        raise TopicNotFoundError(f"{topic} is not partitioned", field="topic")
    body = dict(await services.admin.topic_stats(str(topic)))
    body["metadata"] = {"partitions": count, "deleted": False}
    if per_partition and not body.get("partitions"):
        body["partitions"] = {
            str(name): dict(await services.admin.topic_stats(str(name))) for name in topic.partitions(count)
        }
    if not per_partition:
        body["partitions"] = {}
    return JSONResponse(body)


@router.post(f"{TOPIC}/terminate", summary="End a topic")
async def terminate(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """Nothing is published to it any more, and it can be read to its end. Answers with the id of the last message."""
    if await services.admin.partitions(str(topic)):
        raise MethodNotAllowedError(f"{topic} is partitioned: use terminate/partitions", field="topic")
    last = await services.admin.terminate_topic(str(topic))
    return JSONResponse(_last_message(last[str(topic)], topic.partition))


@router.post(f"{TOPIC}/terminate/partitions", summary="End all partitions of a topic")
async def terminate_partitions(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """As `terminate`; answers with the id of the last message by number of the partition."""
    count = await services.admin.partitions(str(topic))
    if not count:
        raise MethodNotAllowedError(f"{topic} is not partitioned: use terminate", field="topic")
    last = await services.admin.terminate_topic(str(topic))
    return JSONResponse(
        {str(part.partition): _last_message(last[str(part)], part.partition) for part in topic.partitions(count)}
    )


@router.put(f"{TOPIC}/compaction", status_code=204, summary="Compact a topic")
async def compact(services: ServicesDep, topic: TopicInUrl) -> Response:
    """Begin to keep the latest message of each key for those who read compacted; 409 while that is under way."""
    await services.admin.compact_topic(str(topic))
    return Response(status_code=204)


@router.get(f"{TOPIC}/compaction", summary="How compaction goes")
async def compaction_status(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """`{"status": "NOT_RUN" | "RUNNING" | "SUCCESS" | "ERROR", "lastError": ""}`"""
    return JSONResponse(dict(await services.admin.compaction_status(str(topic))))


@router.get(f"{TOPIC}/internalStats", summary="Ledgers and cursors")
async def internal_stats(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """The topic's ledgers with the bookies that hold them, and its cursors."""
    return JSONResponse(dict(await services.admin.topic_internal_stats(str(topic))))


@router.get(f"{TOPIC}/subscriptions", summary="List subscriptions")
async def subscriptions(services: ServicesDep, topic: TopicInUrl) -> list[str]:
    """Names of the durable subscriptions."""
    return list(await services.admin.subscriptions(str(topic)))


@router.put(f"{TOPIC}/subscription/{{subscription}}", status_code=204, openapi_extra=_position_body)
async def create_subscription(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> Response:
    """Create a durable subscription that starts at `"latest"` (default), `"earliest"`, or with a message.

    A message is `{"ledgerId": l, "entryId": e}`; with `"isExcluded": true` the subscription starts behind it.
    """
    position = _position(await json_body(request))
    await services.admin.create_subscription(str(topic), subscription, position)
    return Response(status_code=204)


@router.delete(f"{TOPIC}/subscription/{{subscription}}", status_code=204)
async def delete_subscription(
    services: ServicesDep,
    topic: TopicInUrl,
    subscription: SubscriptionInUrl,
    force: Annotated[bool, Query()] = False,
) -> Response:
    """Delete a subscription; `force` also with consumers connected."""
    try:
        await services.admin.delete_subscription(str(topic), subscription, force)
    except ConflictError as error:  # 412 here as Pulsar has it; 409 elsewhere
        raise TopicBusyError(str(error), field="subscription") from error
    return Response(status_code=204)


async def _delete(services: Services, topic: TopicName, force: bool) -> Response:
    await services.producers.drop(str(topic))  # ours would make the topic look busy
    if force:
        await services.consumers.drop(str(topic))
    await services.admin.delete_topic(str(topic), force)
    return Response(status_code=204)


def _last_message(position: str, partition: int) -> dict[str, int]:
    ledger_id, entry_id = position.split(":")
    return {"ledgerId": int(ledger_id), "entryId": int(entry_id), "partitionIndex": partition}


def _partitions(body: Any) -> int:
    count = body.get("partitions") if isinstance(body, dict) else body
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= PARTITIONS_MAX:
        raise BadRequestError(
            "the body must be the number of partitions", field="partitions", limit=f"1..{PARTITIONS_MAX}"
        )
    return count


_QUORUMS = {
    "bookkeeperEnsemble": "ensemble_size",
    "bookkeeperWriteQuorum": "write_quorum",
    "bookkeeperAckQuorum": "ack_quorum",
}


def _persistence(body: Any) -> dict[str, int] | None:
    """Copies from a body's own fields or from its ``properties``; None when it says nothing of them.

    Raises:
        BadRequestError: some of the three are missing, or are no numbers. Their relation is checked by the broker.
    """
    if body is None or isinstance(body, int):
        return None
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object", field="body")
    properties = body.get("properties")
    fields = {**(properties if isinstance(properties, dict) else {}), **body}
    given = {ours: fields[name] for name, ours in _QUORUMS.items() if name in fields}
    if not given:
        return None
    try:
        numbers = {name: int(value) for name, value in given.items()}
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"copies must be whole numbers: {error}", field=",".join(_QUORUMS)) from error
    if len(numbers) != len(_QUORUMS):
        raise BadRequestError(f"give all of {', '.join(_QUORUMS)}", field=",".join(_QUORUMS))
    return numbers


def _position(body: Any) -> str:
    if body is None:
        return "latest"
    if body in ("latest", "earliest"):
        return str(body)
    if isinstance(body, dict):
        ledger_id, entry_id = body.get("ledgerId"), body.get("entryId")
        if isinstance(ledger_id, int) and isinstance(entry_id, int):
            return _position_of_id(ledger_id, entry_id, excluded=body.get("isExcluded") is True)
    raise BadRequestError('the body must be "latest", "earliest" or a message id', field="body")


def _position_of_id(ledger_id: int, entry_id: int, *, excluded: bool) -> str:
    """The two ends as Pulsar's clients name them by ids, or ``ledger:entry`` of the last message not to deliver."""
    if ledger_id < 0:
        return "earliest"
    if ledger_id == 2**63 - 1:
        return "latest"
    return f"{ledger_id}:{entry_id if excluded else max(entry_id, 0) - 1}"
