"""Pulsar's administrative REST interface for subscriptions: moving them, and looking at their messages."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import MalformedJsonError, MethodNotAllowedError
from gateway.json_forms import iso_time
from gateway.schemas import ErrorBody, json_body
from gateway.services import Services, ServicesDep
from gateway.topics import ADMIN_TOPIC, SubscriptionInUrl, TopicInUrl
from heliograph.errors import BadRequestError, NotFoundError
from heliograph.protocol.topic_name import TopicName

HEADER_PROPERTIES_MAX = 100  # of a message shown as headers
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


@router.post(f"{SUBSCRIPTION}/skip/{{count}}", status_code=204, summary="Skip messages")
async def skip(services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl, count: Count) -> Response:
    """Acknowledge the next entries that are not acknowledged."""
    await _check_one(services, topic)
    await services.admin.cursors.skip(str(topic), subscription, count)
    return Response(status_code=204)


@router.post(f"{SUBSCRIPTION}/skip_all", status_code=204, summary="Skip everything")
async def skip_all(services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl) -> Response:
    """Acknowledge everything there is."""
    await services.admin.cursors.skip_all(str(topic), subscription)
    return Response(status_code=204)


@router.post(f"{SUBSCRIPTION}/expireMessages/{{seconds}}", status_code=204, summary="Skip what is old")
async def expire(
    services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl, seconds: Seconds
) -> Response:
    """Acknowledge everything older than that."""
    await services.admin.cursors.expire(str(topic), subscription, seconds)
    return Response(status_code=204)


@router.post(f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", status_code=204, summary="Skip what is old")
async def expire_all(services: ServicesDep, topic: TopicInUrl, seconds: Seconds) -> Response:
    """The same for every durable subscription of the topic."""
    await services.admin.cursors.expire(str(topic), None, seconds)
    return Response(status_code=204)


@router.post(
    f"{SUBSCRIPTION}/expireMessages", status_code=204, summary="Skip up to a message", openapi_extra=_position_body
)
async def expire_to(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> Response:
    """Acknowledge everything up to `{"ledgerId", "entryId"}`, and it too unless `"isExcluded": true`."""
    await _check_one(services, topic)
    message_id, excluded = _message_id(await _object(request))
    await services.admin.cursors.expire_to(str(topic), subscription, message_id, excluded)
    return Response(status_code=204)


@router.post(f"{SUBSCRIPTION}/resetcursor/{{time}}", status_code=204, summary="Go to a time")
async def reset_to_time(
    services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl, time: Time
) -> Response:
    """Deliver everything published at or after a time again; consumers are disconnected and come back."""
    await services.admin.cursors.reset(str(topic), subscription, time)
    return Response(status_code=204)


@router.post(f"{SUBSCRIPTION}/resetcursor", status_code=204, summary="Go to a message", openapi_extra=_position_body)
async def reset_to_id(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> Response:
    """Deliver from `{"ledgerId", "entryId", "batchIndex"?}` on, behind it with `"isExcluded": true`."""
    message_id, excluded = _message_id(await _object(request))
    if message_id not in ("earliest", "latest"):
        await _check_one(services, topic)
    await services.admin.cursors.reset(str(topic), subscription, message_id, excluded)
    return Response(status_code=204)


@router.get(f"{SUBSCRIPTION}/properties", summary="Properties of a subscription")
async def properties(services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl) -> dict[str, str]:
    """What is attached to it."""
    return dict(await services.admin.cursors.properties(str(topic), subscription))


@router.put(
    f"{SUBSCRIPTION}/properties", status_code=204, summary="Replace the properties", openapi_extra=_position_body
)
async def set_properties(
    request: Request, services: ServicesDep, topic: TopicInUrl, subscription: SubscriptionInUrl
) -> Response:
    """The body is an object of text values."""
    await services.admin.cursors.set_properties(str(topic), subscription, await _object(request))
    return Response(status_code=204)


@router.get(f"{SUBSCRIPTION}/position/{{number}}", summary="Peek at a message")
async def peek(
    services: ServicesDep,
    topic: TopicInUrl,
    subscription: SubscriptionInUrl,
    number: Annotated[int, Path(ge=1, le=1_000, description="The next one is 1")],
) -> Response:
    """The payload of the message that many places ahead, one of a batch by itself; the rest is in headers."""
    await _check_one(services, topic)
    found = await services.admin.cursors.peek(str(topic), subscription, number)
    if len(found) < number:
        raise NotFoundError(f"{subscription} has {len(found)} messages in front of it", field="position")
    return _shown(found[-1])


@router.get(f"{TOPIC}/examinemessage", summary="A message by its place")
async def examine(
    services: ServicesDep,
    topic: TopicInUrl,
    initial: Annotated[str, Query(alias="initialPosition")] = "latest",
    number: Annotated[int, Query(alias="messagePosition", ge=1)] = 1,
) -> Response:
    """The first message of the entry that many places from the `earliest` or the `latest` one."""
    await _check_one(services, topic)
    return _shown((await services.admin.cursors.examine(str(topic), initial, number))[0])


@router.get(f"{TOPIC}/ledger/{{ledger_id}}/entry/{{entry_id}}", summary="A message by its id")
async def message(services: ServicesDep, topic: TopicInUrl, ledger_id: int, entry_id: int) -> Response:
    """The first message of that entry."""
    await _check_one(services, topic)
    return _shown((await services.admin.cursors.message(str(topic), ledger_id, entry_id))[0])


@router.get(f"{TOPIC}/messageid/{{time}}", summary="The message at a time")
async def message_id_at(services: ServicesDep, topic: TopicInUrl, time: Time) -> dict[str, int]:
    """The first message published at or after a time, or the last one."""
    await _check_one(services, topic)
    return _id_fields(await services.admin.cursors.message_id_at(str(topic), time))


@router.get(f"{TOPIC}/lastMessageId", summary="The newest message")
async def last_message_id(services: ServicesDep, topic: TopicInUrl) -> dict[str, int]:
    """Both numbers are -1 when there is none."""
    await _check_one(services, topic)
    return _id_fields(await services.admin.cursors.last_message_id(str(topic)))


async def _check_one(services: Services, topic: TopicName) -> None:
    if await services.admin.partitions(str(topic)) > 0:
        raise MethodNotAllowedError(f"{topic} is partitioned: ask for one of its partitions", field="topic")


async def _object(request: Request) -> dict[str, Any]:
    found = await json_body(request)
    if not isinstance(found, dict):
        raise MalformedJsonError("the body is no JSON object", field="body")
    return found


def _message_id(body: dict[str, Any]) -> tuple[str, bool]:
    """An id as text, and whether it is excluded."""
    numbers = [body.get("ledgerId"), body.get("entryId"), body.get("partitionIndex", -1), body.get("batchIndex", -1)]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise BadRequestError("the body names ledgerId and entryId", field="body")
    ledger_id, entry_id, partition, batch_index = (int(number or 0) for number in numbers)
    excluded = body.get("isExcluded") is True
    if ledger_id < 0:
        return "earliest", excluded
    if ledger_id == 2**63 - 1:
        return "latest", excluded
    batch = f":{batch_index}" if batch_index >= 0 else ""
    return f"{ledger_id}:{entry_id}:{partition}{batch}", excluded


def _id_fields(text: str) -> dict[str, int]:
    names = ("ledgerId", "entryId", "partitionIndex", "batchIndex")
    return dict(zip(names, map(int, text.split(":")), strict=False))


def _shown(found: dict[str, Any]) -> Response:
    """A message as Pulsar shows it: payload in the body, all else in headers."""
    headers = {
        "X-Pulsar-Message-ID": ":".join(found["message_id"].split(":")[:2]),
        "X-Pulsar-publish-time": iso_time(found["publish_time_ms"]),
        "X-Pulsar-producer-name": _ascii(found["producer_name"]),
        "X-Pulsar-sequence-id": str(found["sequence_id"]),
    }
    if found["event_time_ms"]:
        headers["X-Pulsar-event-time"] = iso_time(found["event_time_ms"])
    if found["deliver_at_ms"]:
        headers["X-Pulsar-deliver-at-time"] = iso_time(found["deliver_at_ms"])
    if found["key"] is not None:
        headers["X-Pulsar-partition-key"] = _ascii(found["key"])
    if found["batch_size"]:
        headers["X-Pulsar-num-batch-message"] = str(found["batch_size"])
        headers["X-Pulsar-batch-index"] = found["message_id"].split(":")[3]
    shown = dict(list(found["properties"].items())[:HEADER_PROPERTIES_MAX])
    if shown:
        headers["X-Pulsar-PROPERTY"] = json.dumps(shown)
    return Response(found["payload"], media_type="application/octet-stream", headers=headers)


def _ascii(text: str) -> str:
    """Text that a header can carry: what is not printable ASCII is escaped."""
    return text.encode("unicode_escape").decode("ascii")
