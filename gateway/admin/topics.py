"""Pulsar's administrative REST interface for topics, and for creating and deleting their subscriptions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from heliograph.base.clock import iso_time
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    SubscriptionNotFoundError,
    TopicBusyError,
    TopicNotFoundError,
    UnsupportedError,
)
from heliograph.gateway.admin.not_offered import NO_TRANSACTIONS
from heliograph.gateway.admin.policy_shapes import PERSISTENCE_FIELDS
from heliograph.gateway.admin.routes import NO_CONTENT, is_excluded, json_object, text_values
from heliograph.gateway.errors import MethodNotAllowedError
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, json_body
from heliograph.gateway.shapes.json_forms import number_in_text
from heliograph.gateway.shapes.topics import ADMIN_TOPIC, SubscriptionInUrl, TopicInUrl
from heliograph.operations.table import PARTITIONS_MAX, Answer
from heliograph.protocol.topic_name import TopicName

TOPIC = ADMIN_TOPIC
SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"  # property by which Pulsar's tools create a shadow topic
NO_SHADOWS = "shadow topics are not offered: subscribe to the topic itself"
NOT_REPLICATED = "replicated subscriptions are not offered: there is one cluster"

router = APIRouter(
    tags=["topics"],
    responses={
        404: {"model": ErrorBody, "description": "No such topic or subscription"},
        409: {"model": ErrorBody, "description": "It exists already, or is in use"},
        412: {"model": ErrorBody, "description": "A name that is not allowed, or something is still attached"},
    },
)
WithoutPublishers = Annotated[bool, Query(alias="excludePublishers", description="List no producers")]
LedgerInQuery = Annotated[int, Query(ge=-1, le=2**63 - 1, description="Id of a ledger")]
WithoutConsumers = Annotated[bool, Query(alias="excludeConsumers", description="List no consumers")]
_integer_body = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "integer"}}}}}
_position_body = {"requestBody": {"content": {"application/json": {"schema": {"type": ["string", "object"]}}}}}
_properties_body = {
    "requestBody": {"content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}}
}


@router.put(TOPIC, **NO_CONTENT, summary="Create a topic", openapi_extra=_properties_body)
async def create_topic(request: Request, services: ServicesDep, topic: TopicInUrl) -> None:
    """Create a topic without partitions.

    The optional body has its properties. Three of them set copies instead:
    `{"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}`.
    """
    body = await json_body(request)
    await services.admin.create_topic(str(topic), persistence=_persistence(body), properties=_properties(body))


@router.put(f"{TOPIC}/partitions", **NO_CONTENT, summary="Create a partitioned topic", openapi_extra=_integer_body)
async def create_partitioned_topic(request: Request, services: ServicesDep, topic: TopicInUrl) -> None:
    """Create a partitioned topic; the body is the number, or `{"partitions": n, "properties": {...}}`."""
    body = await json_body(request)
    count, persistence = _partitions(body), None
    if isinstance(body, dict):
        persistence = _persistence(body)
    await services.admin.create_topic(str(topic), count, persistence, _properties(body))


@router.post(f"{TOPIC}/partitions", **NO_CONTENT, summary="Add partitions", openapi_extra=_integer_body)
async def grow_partitioned_topic(request: Request, services: ServicesDep, topic: TopicInUrl) -> None:
    """Add partitions; the body is the new number. Clients notice within their update interval; keys may move."""
    wanted = _partitions(await json_body(request))
    if await services.admin.partitions(str(topic)) == 0:
        raise MethodNotAllowedError(f"{topic} is not partitioned", field="topic")
    await services.admin.update_partitions(str(topic), wanted)


@router.post(f"{TOPIC}/createMissedPartitions", **NO_CONTENT, summary="Create partitions that are missing")
async def create_missed_partitions(services: ServicesDep, topic: TopicInUrl) -> None:
    """Create partitions that were deleted one by one, or left out by an interrupted creation."""
    await services.admin.create_missing_partitions(str(topic))


@router.put(f"{TOPIC}/unload", **NO_CONTENT, summary="Unload a topic")
async def unload_topic(services: ServicesDep, topic: TopicInUrl) -> None:
    """Close the topic at its owner; clients open it again by themselves."""
    await services.admin.unload_topic(str(topic))


@router.get(f"{TOPIC}/partitions", summary="Number of partitions")
async def partitions(
    services: ServicesDep,
    topic: TopicInUrl,
    check_auto_creation: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
) -> dict[str, Any]:
    """Return `{"partitions": n}`: 0 for a topic without partitions, and for one that its first use would create."""
    if topic.is_transaction_coordinator:
        # Not 501: a client that looks topics up by HTTP repeats every answer but "not found" until its time is over.
        raise TopicNotFoundError(NO_TRANSACTIONS, field="topic")
    count = await services.admin.partitions(str(topic), check_auto_creation)
    return {"partitions": count, "deleted": False}


@router.delete(f"{TOPIC}/partitions", **NO_CONTENT, summary="Delete a partitioned topic")
async def delete_partitioned_topic(
    services: ServicesDep, topic: TopicInUrl, force: Annotated[bool, Query()] = False
) -> None:
    """Delete a topic with all its partitions; with `force` also while producers and consumers are attached."""
    if await services.admin.partitions(str(topic)) == 0:
        raise TopicNotFoundError(f"{topic} is not partitioned: delete it without /partitions", field="topic")
    await _delete(services, topic, force)


@router.delete(TOPIC, **NO_CONTENT, summary="Delete a topic")
async def delete_topic(services: ServicesDep, topic: TopicInUrl, force: Annotated[bool, Query()] = False) -> None:
    """Delete a topic without partitions; with `force` also while producers and consumers are attached."""
    if await services.admin.partitions(str(topic)) > 0:
        raise ConflictError(f"{topic} is partitioned: delete {topic.local_name}/partitions", field="topic")
    await _delete(services, topic, force)


@router.get(f"{TOPIC}/stats", summary="Statistics")
async def stats(
    services: ServicesDep,
    topic: TopicInUrl,
    without_publishers: WithoutPublishers = False,
    without_consumers: WithoutConsumers = False,
) -> JSONResponse:
    """Return rates, counters, producers, subscriptions and their consumers."""
    found = dict(await services.admin.topic_stats(str(topic)))
    _leave_out(found, without_publishers, without_consumers)
    return JSONResponse(found)


@router.get(f"{TOPIC}/partitioned-stats", summary="Statistics of a partitioned topic")
async def partitioned_stats(
    services: ServicesDep,
    topic: TopicInUrl,
    per_partition: Annotated[bool, Query(alias="perPartition")] = True,
    without_publishers: WithoutPublishers = False,
    without_consumers: WithoutConsumers = False,
) -> JSONResponse:
    """Return the sums over all partitions, and the statistics of each partition."""
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
    for one in (body, *body.get("partitions", {}).values()):
        _leave_out(one, without_publishers, without_consumers)
    return JSONResponse(body)


def _leave_out(stats: dict[str, Any], publishers: bool, consumers: bool) -> None:
    """Empty the lists of producers, of consumers, or of both in the statistics of a topic."""
    if publishers:
        stats["publishers"] = []
    if consumers:
        for subscription in stats.get("subscriptions", {}).values():
            subscription["consumers"] = []


@router.get(f"{TOPIC}/partitioned-internalStats", summary="Ledgers and cursors of a partitioned topic")
async def partitioned_internal_stats(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """Return the ledgers and cursors of each partition."""
    count = await services.admin.partitions(str(topic))
    if count == 0:
        raise TopicNotFoundError(f"{topic} is not partitioned", field="topic")
    found = dict(await services.admin.topic_internal_stats(str(topic)))
    return JSONResponse({**found, "metadata": {"partitions": count, "deleted": False}})


@router.get(f"{TOPIC}/ledgers", summary="Ledgers of a topic, in pages")
async def ledgers(services: ServicesDep, topic: TopicInUrl, after: LedgerInQuery = -1) -> JSONResponse:
    """Return a page of the ledgers of a topic without partitions, or of one partition, oldest first. The next page
    begins `after` the last id of this one."""
    return JSONResponse(dict(await services.admin.topic_ledgers(str(topic), after)))


@router.get(f"{TOPIC}/internal-info", summary="The stored records of a topic")
async def internal_info(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """Return the stored records of the topic and its cursors, or those of each partition. Nothing is loaded."""
    count = await services.admin.partitions(str(topic))
    if count == 0:
        return JSONResponse(_info(await services.admin.topic_record(str(topic))))
    parts = {str(name): _info(await services.admin.topic_record(str(name))) for name in topic.partitions(count)}
    return JSONResponse({"version": 0, "partitions": parts})


@router.get(f"{TOPIC}/properties", summary="Properties of a topic")
async def properties(services: ServicesDep, topic: TopicInUrl) -> dict[str, str]:
    """Return the properties of the topic, partitioned or not."""
    return dict(await services.admin.topic_properties(str(topic)))


@router.put(f"{TOPIC}/properties", **NO_CONTENT, summary="Set properties of a topic", openapi_extra=_properties_body)
async def update_properties(request: Request, services: ServicesDep, topic: TopicInUrl) -> None:
    """Set some properties; the others stay. The body is an object of text values."""
    await services.admin.update_topic_properties(str(topic), text_values(await json_object(request)))


@router.delete(f"{TOPIC}/properties", **NO_CONTENT, summary="Remove a property of a topic")
async def remove_property(
    services: ServicesDep, topic: TopicInUrl, key: Annotated[str, Query(description="Name of the property")]
) -> None:
    """Remove one property; nothing happens where the topic does not have it."""
    await services.admin.remove_topic_properties(str(topic), [key])


@router.delete(f"{TOPIC}/truncate", **NO_CONTENT, summary="Delete all messages of a topic")
async def truncate(services: ServicesDep, topic: TopicInUrl) -> None:
    """Move all subscriptions to the end, and delete all messages whatever retention says."""
    await services.admin.truncate_topic(str(topic))


@router.post(f"{TOPIC}/trim", **NO_CONTENT, summary="Delete messages that nothing needs")
async def trim(services: ServicesDep, topic: TopicInUrl) -> None:
    """Delete the ledgers that neither a subscription nor retention needs, now."""
    await services.admin.trim_topic(str(topic))


@router.post(f"{TOPIC}/terminate", summary="End a topic")
async def terminate(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """End the topic: it can be read, and nothing can be published to it. Returns the id of the last message."""
    if await services.admin.partitions(str(topic)):
        raise MethodNotAllowedError(f"{topic} is partitioned: use terminate/partitions", field="topic")
    last = await services.admin.terminate_topic(str(topic))
    return JSONResponse(_last_message(last[str(topic)], topic.partition))


@router.post(f"{TOPIC}/terminate/partitions", summary="End all partitions of a topic")
async def terminate_partitions(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """End all partitions; return the id of the last message of each by the number of the partition."""
    count = await services.admin.partitions(str(topic))
    if not count:
        raise MethodNotAllowedError(f"{topic} is not partitioned: use terminate", field="topic")
    last = await services.admin.terminate_topic(str(topic))
    return JSONResponse(
        {str(part.partition): _last_message(last[str(part)], part.partition) for part in topic.partitions(count)}
    )


@router.put(f"{TOPIC}/compaction", **NO_CONTENT, summary="Compact a topic")
async def compact(services: ServicesDep, topic: TopicInUrl) -> None:
    """Start to keep only the latest message of each key for readers of the compacted topic; 409 while that runs."""
    await services.admin.compact_topic(str(topic))


@router.get(f"{TOPIC}/compaction", summary="Status of compaction")
async def compaction_status(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """Return `{"status": "NOT_RUN" | "RUNNING" | "SUCCESS" | "ERROR", "lastError": ""}`."""
    return JSONResponse(dict(await services.admin.compaction_status(str(topic))))


@router.get(f"{TOPIC}/internalStats", summary="Ledgers and cursors")
async def internal_stats(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """Return the topic's ledgers with their ensembles, and its cursors."""
    return JSONResponse(dict(await services.admin.topic_internal_stats(str(topic))))


@router.get(f"{TOPIC}/subscriptions", summary="List subscriptions")
async def subscriptions(services: ServicesDep, topic: TopicInUrl) -> list[str]:
    """Return the names of the subscriptions."""
    return list(await services.admin.subscriptions(str(topic)))


@router.put(f"{TOPIC}/subscription/{{subscription}}", **NO_CONTENT, openapi_extra=_position_body)
async def create_subscription(
    request: Request,
    services: ServicesDep,
    topic: TopicInUrl,
    subscription: SubscriptionInUrl,
    replicated: Annotated[bool, Query(description="Refused: there is one cluster only")] = False,
) -> None:
    """Create a durable subscription that starts at `"latest"` (default), `"earliest"`, or with a message.

    A message is `{"ledgerId": l, "entryId": e}`; with `"excluded": true` the subscription starts after it. The object
    may have `properties`, of the subscription.
    """
    if replicated:
        raise UnsupportedError(NOT_REPLICATED, field="replicated")
    body = await json_body(request)
    attached = text_values(body.get("properties") or {}) if isinstance(body, dict) else None
    await services.admin.create_subscription(str(topic), subscription, _position(body), attached)


@router.delete(f"{TOPIC}/subscription/{{subscription}}", **NO_CONTENT)
async def delete_subscription(
    services: ServicesDep,
    topic: TopicInUrl,
    subscription: SubscriptionInUrl,
    force: Annotated[bool, Query()] = False,
) -> None:
    """Delete a subscription; with `force` also while consumers are connected."""
    try:
        await services.admin.delete_subscription(str(topic), subscription, force)
    except ConflictError as error:  # 412 here as Pulsar has it; 409 elsewhere
        raise TopicBusyError(str(error), field="subscription") from error


# -- what a cluster by itself does not have


@router.get(f"{TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus", summary="Replicated: never")
async def replicated_status(
    services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> dict[str, bool]:
    """Return `{topic: false}`, for each partition."""
    if subscription not in await services.admin.subscriptions(str(topic)):
        raise SubscriptionNotFoundError(f"{topic} has no subscription {subscription}", field="subscription")
    return {str(part): False for part in topic.partitions(await services.admin.partitions(str(topic)))}


@router.post(f"{TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus", **NO_CONTENT,
             summary="Refused: replicate a subscription")  # fmt: skip
async def set_replicated_status(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> None:
    """Refuse `true`; `false` is what every subscription has."""
    if await json_body(request) not in (False, "false", None):
        raise UnsupportedError(NOT_REPLICATED, field="subscription")
    await replicated_status(services, topic, subscription)


@router.get(f"{TOPIC}/shadowTopics", summary="Shadow topics: none")
async def shadow_topics(services: ServicesDep, topic: TopicInUrl) -> list[str]:
    """Return an empty list."""
    await services.admin.partitions(str(topic))
    return []


@router.put(f"{TOPIC}/shadowTopics", **NO_CONTENT, summary="Refused: shadow topics")
@router.delete(f"{TOPIC}/shadowTopics", **NO_CONTENT, include_in_schema=False)
async def change_shadow_topics(topic: TopicInUrl) -> None:
    """Refuse: topics have no shadows."""
    raise UnsupportedError(NO_SHADOWS, field="shadowTopics")


@router.get(f"{TOPIC}/offload", response_class=Response, summary="Refused: the state of offloading")
@router.put(f"{TOPIC}/offload", response_class=Response, include_in_schema=False)
async def offload(topic: TopicInUrl) -> Response:
    """Refuse: ledgers stay on bookies."""
    raise UnsupportedError("offloading is not offered: all ledgers of a topic stay on bookies", field="topic")


async def _delete(services: Services, topic: TopicName, force: bool) -> None:
    try:
        await services.admin.delete_topic(str(topic), force)
    except (ConflictError, TopicBusyError):
        # The gateway's own producers may make the topic busy. They are closed only now: the caller has the right.
        await services.producers.drop(str(topic))
        await services.admin.delete_topic(str(topic), force)
    await services.producers.drop(str(topic))
    await services.consumers.drop(str(topic))


def _last_message(position: str, partition: int) -> dict[str, int]:
    ledger_id, entry_id = position.split(":")
    return {"ledgerId": int(ledger_id), "entryId": int(entry_id), "partitionIndex": partition}


def _info(record: Answer) -> dict[str, Any]:
    """Return the stored record of a topic in Pulsar's shape."""
    end = record["terminated_at"]
    return {
        "version": record["version"],
        "creationDate": iso_time(record["created_ms"]),
        "modificationDate": iso_time(record["modified_ms"]),
        "ledgers": [
            {
                "ledgerId": one["ledger_id"],
                "entries": one["entries"],
                "size": one["size"],
                "timestamp": one["closed_ms"],
                "isOffloaded": False,
            }
            for one in record["ledgers"]
        ],
        "terminatedPosition": None if end is None else {"ledgerId": end[0], "entryId": end[1]},
        "properties": record["properties"],
        "cursors": {
            name: {
                "version": 0,
                "cursorsLedgerId": one["ledger_id"],
                "markDelete": {"ledgerId": one["mark_delete"][0], "entryId": one["mark_delete"][1]},
                "individualDeletedMessages": None,
                "properties": one["properties"],
            }
            for name, one in record["cursors"].items()
        },
    }


def _properties(body: Any) -> dict[str, str] | None:
    """Return the user's properties in the body that creates a topic: its ``properties``, or the body itself.

    Raises:
        UnsupportedError: they ask for a shadow topic.
    """
    if not isinstance(body, dict):
        return None
    fields = body.get("properties") if "partitions" in body or isinstance(body.get("properties"), dict) else body
    found = {name: value for name, value in (fields or {}).items() if name not in PERSISTENCE_FIELDS.values()}
    if SHADOW_SOURCE in found:
        raise UnsupportedError(NO_SHADOWS, field="properties")
    return text_values(found) or None


def _partitions(body: Any) -> int:
    count = number_in_text(body.get("partitions") if isinstance(body, dict) else body)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= PARTITIONS_MAX:
        raise BadRequestError(
            "the body must be the number of partitions", field="partitions", limit=f"1..{PARTITIONS_MAX}"
        )
    return count


def _persistence(body: Any) -> dict[str, int] | None:
    """Return the numbers of copies from a body's own fields or its ``properties``; None when it has none of them.

    Raises:
        BadRequestError: some of the three are missing, or are no numbers. The broker checks their relation.
    """
    if body is None or isinstance(body, int):
        return None
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object", field="body")
    properties = body.get("properties")
    fields = {**(properties if isinstance(properties, dict) else {}), **body}
    given = {ours: fields[name] for ours, name in PERSISTENCE_FIELDS.items() if name in fields}
    if not given:
        return None
    names = ",".join(PERSISTENCE_FIELDS.values())
    try:
        numbers = {name: int(value) for name, value in given.items()}
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"copies must be whole numbers: {error}", field=names) from error
    if len(numbers) != len(PERSISTENCE_FIELDS):
        raise BadRequestError(f"give all of {names.replace(',', ', ')}", field=names)
    return numbers


def _position(body: Any) -> str:
    if body is None:
        return "latest"
    if body in ("latest", "earliest"):
        return str(body)
    if isinstance(body, dict):
        ledger_id, entry_id = number_in_text(body.get("ledgerId")), number_in_text(body.get("entryId"))
        if isinstance(ledger_id, int) and isinstance(entry_id, int):
            return _position_of_id(ledger_id, entry_id, excluded=is_excluded(body))
        if ledger_id is None and entry_id is None and "properties" in body:
            return "latest"
    raise BadRequestError('the body must be "latest", "earliest" or a message id', field="body")


def _position_of_id(ledger_id: int, entry_id: int, *, excluded: bool) -> str:
    """Return an end that Pulsar's clients name by an id, or ``ledger:entry`` of the last message not to deliver."""
    if ledger_id < 0:
        return "earliest"
    if ledger_id == 2**63 - 1:
        return "latest"
    return f"{ledger_id}:{entry_id if excluded else max(entry_id, 0) - 1}"
