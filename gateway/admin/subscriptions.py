"""Pulsar's administrative REST interface for the cursors of subscriptions, and for looking at stored messages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.gateway.admin.routes import NO_CONTENT, is_excluded, json_object, text_values
from heliograph.gateway.errors import MethodNotAllowedError
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, json_body
from heliograph.gateway.shapes.json_forms import number_in_text
from heliograph.gateway.shapes.stored_entry import entry_response
from heliograph.gateway.shapes.topics import ADMIN_TOPIC, SubscriptionInUrl, TopicInUrl
from heliograph.operations.table import PEEK_MAX
from heliograph.protocol.topic_name import TopicName

TOPIC = ADMIN_TOPIC
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"

router = APIRouter(
    tags=["subscriptions"],
    responses={
        404: {"model": ErrorBody, "description": "No such topic, subscription or message"},
        405: {"model": ErrorBody, "description": "Not for a partitioned topic: ask for one of its partitions"},
    },
)
_position_body = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
Count = Annotated[int, Path(ge=0, description="How many entries")]
Seconds = Annotated[int, Path(ge=0, description="Older than so many seconds")]
Time = Annotated[int, Path(ge=0, description="Milliseconds since the epoch")]


@router.post(f"{SUBSCRIPTION}/skip/{{count}}", **NO_CONTENT, summary="Skip messages")
async def skip(services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl, count: Count) -> None:
    """Acknowledge the next entries that are not acknowledged."""
    await _refuse_partitioned(services, topic)
    await services.admin.cursors.skip(str(topic), subscription, count)


@router.post(f"{SUBSCRIPTION}/skip_all", **NO_CONTENT, summary="Skip everything")
async def skip_all(services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl) -> None:
    """Acknowledge all entries."""
    await services.admin.cursors.skip_all(str(topic), subscription)


@router.post(f"{SUBSCRIPTION}/expireMessages/{{seconds}}", **NO_CONTENT, summary="Skip old messages")
async def expire(services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl, seconds: Seconds) -> None:
    """Acknowledge all entries that are older."""
    await services.admin.cursors.expire(str(topic), subscription, seconds)


@router.post(f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", **NO_CONTENT, summary="Skip old messages")
async def expire_all(services: ServicesDep, topic: TopicInUrl, seconds: Seconds) -> None:
    """Acknowledge all entries that are older, for every durable subscription of the topic."""
    await services.admin.cursors.expire(str(topic), None, seconds)


@router.post(
    f"{SUBSCRIPTION}/expireMessages", **NO_CONTENT, summary="Skip up to a message", openapi_extra=_position_body
)
async def expire_to(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> None:
    """Acknowledge everything up to `{"ledgerId", "entryId"}`, including it unless `"isExcluded": true`."""
    await _refuse_partitioned(services, topic)
    message_id, excluded = _message_id(await json_object(request))
    await services.admin.cursors.expire_to(str(topic), subscription, message_id, excluded)


@router.post(f"{SUBSCRIPTION}/resetcursor/{{time}}", **NO_CONTENT, summary="Go to a time")
async def reset_to_time(services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl, time: Time) -> None:
    """Deliver everything published at or after a time again; consumers are disconnected and reconnect."""
    await services.admin.cursors.reset(str(topic), subscription, time)


@router.post(f"{SUBSCRIPTION}/resetcursor", **NO_CONTENT, summary="Go to a message", openapi_extra=_position_body)
async def reset_to_id(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> None:
    """Deliver from `{"ledgerId", "entryId", "batchIndex"?}` on, or after it with `"isExcluded": true`."""
    message_id, excluded = _message_id(await json_object(request))
    if message_id not in ("earliest", "latest"):
        await _refuse_partitioned(services, topic)
    await services.admin.cursors.reset(str(topic), subscription, message_id, excluded)


@router.get(f"{SUBSCRIPTION}/properties", summary="Properties of a subscription")
async def properties(services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl) -> dict[str, str]:
    """Return the properties of the subscription."""
    return dict(await services.admin.cursors.properties(str(topic), subscription))


@router.put(f"{SUBSCRIPTION}/properties", **NO_CONTENT, summary="Replace the properties", openapi_extra=_position_body)
async def set_properties(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> None:
    """Replace the properties; the body is an object of text values."""
    found = text_values(await json_object(request))
    await services.admin.cursors.set_properties(str(topic), subscription, found)


@router.post(f"{SUBSCRIPTION}/analyzeBacklog", summary="Count a backlog", openapi_extra=_position_body)
async def analyze(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> dict[str, Any]:
    """Read the backlog, from the message in the optional body on, and count entries and messages.

    `aborted` says that a limit on entries, bytes or time was reached before the end.
    """
    await _refuse_partitioned(services, topic)
    body = await json_body(request)
    start = None if body is None else _message_id(_object(body))[0]
    found = await services.admin.cursors.analyze_backlog(str(topic), subscription, start)
    entries, messages = found["entries"], found["messages"]
    kinds = ("filterRejected", "filterRescheduled")
    return {
        "entries": entries,
        "messages": messages,
        "filterAcceptedEntries": entries,
        "filterAcceptedMessages": messages,
        **{f"{kind}{what}": 0 for kind in kinds for what in ("Entries", "Messages")},
        "aborted": found["is_cut"],
        "firstMessageId": found["first"],
        "lastMessageId": found["last"],
    }


@router.put(f"{TOPIC}/backlogSize", summary="Bytes from a message on", openapi_extra=_position_body)
async def backlog_size(request: Request, services: ServicesDep, topic: TopicInUrl) -> int:
    """Return the bytes from the message `{"ledgerId", "entryId"}` on to the end of the topic, estimated."""
    await _refuse_partitioned(services, topic)
    message_id, _ = _message_id(await json_object(request))
    return await services.admin.cursors.backlog_size(str(topic), message_id)


@router.get(f"{SUBSCRIPTION}/position/{{number}}", summary="Peek at a message")
async def peek(
    services: ServicesDep,
    topic: TopicInUrl,
    subscription: SubscriptionInUrl,
    number: Annotated[int, Path(ge=1, le=PEEK_MAX, description="The next one is 1")],
) -> Response:
    """Return the entry so many places ahead: its payload, of a batch the whole decompressed one; the rest is in
    headers."""
    await _refuse_partitioned(services, topic)
    found = await services.admin.cursors.peek(str(topic), subscription, number, True)
    if not found:
        raise NotFoundError(f"{subscription} has fewer than {number} entries ahead of it", field="position")
    return entry_response(found[0])


@router.get(f"{TOPIC}/examinemessage", summary="A message by its place")
async def examine(
    services: ServicesDep,
    topic: TopicInUrl,
    initial: Annotated[str, Query(alias="initialPosition")] = "latest",
    number: Annotated[int, Query(alias="messagePosition", ge=1)] = 1,
) -> Response:
    """Return the entry so many places from the `earliest` or the `latest` one, of a batch the whole."""
    await _refuse_partitioned(services, topic)
    return entry_response((await services.admin.cursors.examine(str(topic), initial, number, True))[0])


@router.get(f"{TOPIC}/ledger/{{ledger_id}}/entry/{{entry_id}}", summary="A message by its id")
async def message(services: ServicesDep, topic: TopicInUrl, ledger_id: int, entry_id: int) -> Response:
    """Return that entry, of a batch the whole."""
    await _refuse_partitioned(services, topic)
    return entry_response((await services.admin.cursors.message(str(topic), ledger_id, entry_id, True))[0])


@router.get(f"{TOPIC}/ledger/{{ledger_id}}/entry/{{entry_id}}/trace", summary="Where a message is")
async def trace(services: ServicesDep, topic: TopicInUrl, ledger_id: int, entry_id: int) -> dict[str, Any]:
    """Return the ledger, the bookies with each copy, and what each subscription has done with an entry."""
    await _refuse_partitioned(services, topic)
    return await services.admin.cursors.trace(str(topic), ledger_id, entry_id)


@router.get(f"{TOPIC}/messages/find", summary="Messages by a property")
async def find(
    services: ServicesDep,
    topic: TopicInUrl,
    property_name: Annotated[str, Query(alias="property")],
    value: str,
    limit: Annotated[int, Query(ge=1, le=PEEK_MAX)] = 10,
) -> dict[str, Any]:
    """Return the ids of the newest messages that have this value of a property, and how far back it was looked."""
    await _refuse_partitioned(services, topic)
    return await services.admin.cursors.find(str(topic), property_name, value, limit)


@router.get(f"{TOPIC}/messageid/{{time}}", summary="The message at a time")
async def message_id_at(services: ServicesDep, topic: TopicInUrl, time: Time) -> dict[str, int]:
    """Return the id of the first message published at or after a time, or of the last one."""
    await _refuse_partitioned(services, topic)
    return _id_fields(await services.admin.cursors.message_id_at(str(topic), time))


@router.get(f"{TOPIC}/lastMessageId", summary="The newest message")
async def last_message_id(services: ServicesDep, topic: TopicInUrl) -> dict[str, int]:
    """Return the id of the newest message; ledger and entry are -1 when there is none."""
    await _refuse_partitioned(services, topic)
    return _id_fields(await services.admin.cursors.last_message_id(str(topic)))


async def _refuse_partitioned(services: Services, topic: TopicName) -> None:
    if await services.admin.partitions(str(topic)) > 0:
        raise MethodNotAllowedError(f"{topic} is partitioned: ask for one of its partitions", field="topic")


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadRequestError("the body names ledgerId and entryId", field="body")
    return body


def _message_id(body: dict[str, Any]) -> tuple[str, bool]:
    """Return the id in a body as text, and whether it is excluded."""
    given = [body.get("ledgerId"), body.get("entryId"), body.get("partitionIndex", -1), body.get("batchIndex", -1)]
    numbers = [number_in_text(number) for number in given]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise BadRequestError("the body names ledgerId and entryId", field="body")
    ledger_id, entry_id, partition, batch_index = (int(number or 0) for number in numbers)
    excluded = is_excluded(body)
    if ledger_id < 0:
        return "earliest", excluded
    if ledger_id == 2**63 - 1:
        return "latest", excluded
    batch = f":{batch_index}" if batch_index >= 0 else ""
    return f"{ledger_id}:{entry_id}:{partition}{batch}", excluded


def _id_fields(text: str) -> dict[str, int]:
    names = ("ledgerId", "entryId", "partitionIndex", "batchIndex")
    return dict(zip(names, map(int, text.split(":")), strict=False))
