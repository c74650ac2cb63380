"""REST consume, which Pulsar does not have: take messages, acknowledge them, request their redelivery."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import Response

from heliograph.base.clock import iso_time
from heliograph.base.errors import AuthenticationError, BadRequestError, NotFoundError
from heliograph.gateway.http.metrics import REST
from heliograph.gateway.ports import MessagePort
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.sessions.consumers import RestConsumer, SessionKey, SubscribeOptions
from heliograph.gateway.shapes import cloud_events
from heliograph.gateway.shapes.bodies import (
    AckAnswer,
    AckRequest,
    ConsumeAnswer,
    ErrorBody,
    NackAnswer,
    aside,
    body_schema,
    parsed,
    read_body,
    until_left,
)
from heliograph.gateway.shapes.json_forms import id_from_text, id_text, text_of, to_base64
from heliograph.gateway.shapes.topics import SubscriptionInUrl, TopicInUrl
from heliograph.protocol.message_id import MessageId

SUBSCRIPTION = "/topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}"
IGNORED_BODY_BYTES_MAX = 64 * 1024
AnyCase = BeforeValidator(str.lower)  # Pulsar's own parameters are written "Exclusive" and "Earliest"
SubscriptionType = Annotated[Literal["exclusive", "shared", "failover", "key_shared"], AnyCase]
InitialPosition = Annotated[Literal["latest", "earliest"], AnyCase]

router = APIRouter(tags=["consume"])
_errors: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "Malformed JSON or a malformed message id"},
    404: {"model": ErrorBody, "description": "The topic does not exist"},
    409: {"model": ErrorBody, "description": "The subscription is busy, or the session is open with another type"},
    429: {"model": ErrorBody, "description": "Too many REST consumers, or too many unacknowledged messages"},
    503: {"model": ErrorBody, "description": "Try again"},
}
_EVENTS = {"type": "array", "items": {"type": "object", "required": ["specversion", "id", "source", "type"]}}
SessionName = Annotated[
    str,
    Query(
        min_length=1, max_length=256, description="Name of the session; callers with the same name share one consumer"
    ),
]


def _session_key(
    services: ServicesDep,
    topic: TopicInUrl,
    subscription: SubscriptionInUrl,
    session_name: Annotated[SessionName, Query(alias="session")] = "default",
) -> SessionKey:
    return SessionKey(str(topic), subscription, session_name, services.caller.role)


SessionInUrl = Annotated[SessionKey, Depends(_session_key)]


@router.post(
    f"{SUBSCRIPTION}/messages",
    summary="Take messages",
    responses={200: {"model": ConsumeAnswer, "content": {cloud_events.BATCHED: {"schema": _EVENTS}}}, **_errors},
)
async def take_messages(
    request: Request,
    services: ServicesDep,
    key: SessionInUrl,
    max_: Annotated[int, Query(alias="max", ge=1, le=1000, description="Maximum number of messages")] = 100,
    timeout_ms: Annotated[
        int, Query(alias="timeoutMs", ge=0, description="Time to wait for a first message, in milliseconds")
    ] = 1000,
    type_: Annotated[SubscriptionType, Query(alias="type", description="Subscription type")] = "shared",
    initial_position: Annotated[
        InitialPosition, Query(alias="initialPosition", description="Position at which a new subscription starts")
    ] = "latest",
) -> Response:
    """Return messages of a subscription. The subscription is created if it does not exist.

    The answer is empty when no message arrives in time. A message that is not acknowledged within the gateway's
    acknowledgement timeout (60 s by default) is delivered again: delivery is at least once.

    With `Accept: application/cloudevents-batch+json` the answer is an array of CloudEvents, each with its message id
    as the attribute `messageid`.
    """
    config = services.config
    await read_body(request, IGNORED_BODY_BYTES_MAX)  # a disconnect is reported only after the body was read
    wait_seconds = min(timeout_ms, config.rest_wait_ms_max) / 1000
    count = min(max_, config.rest_messages_max)
    session = await services.consumers.session(services.caller, key, SubscribeOptions(type_, initial_position, count))
    clock = services.consumers.clock
    left = asyncio.ensure_future(until_left(request.receive))
    try:
        async with services.consumers.using(key, session):
            messages = await session.receive(count, config.rest_answer_bytes_max, wait_seconds, clock, left)
    finally:
        left.cancel()
    if services.authenticator.is_revoked(services.caller.principal):  # while it waited
        raise AuthenticationError("the token has been revoked")
    size = sum(len(message.data) for message in messages)
    services.metrics.delivered(REST, len(messages), size)
    if cloud_events.BATCHED in request.headers.get("accept", "").lower():
        events = await aside(size, partial(_events, messages))
        return Response(events, media_type=cloud_events.BATCHED)
    return _json({"messages": [_message(message) for message in messages]})


@router.post(
    f"{SUBSCRIPTION}/ack",
    summary="Acknowledge messages",
    responses={200: {"model": AckAnswer}, **_errors},
    openapi_extra=body_schema(AckRequest),
)
async def acknowledge(
    request: Request,
    services: ServicesDep,
    key: SessionInUrl,
) -> Response:
    """Acknowledge messages by id. Status 200 means that this is durable: the messages are not delivered again."""
    body, ids, session = await _ids_and_session(request, services, key)
    if body.cumulative and len(ids) != 1:
        raise BadRequestError("a cumulative acknowledgement takes exactly one id", field="messageIds")
    async with services.consumers.using(key, session):
        await session.acknowledge(ids, body.cumulative)  # I11: durable before the 200
    services.metrics.acknowledged(REST, len(ids))
    return _json({"acknowledged": len(ids)})


@router.post(
    f"{SUBSCRIPTION}/nack",
    summary="Request redelivery of messages",
    responses={200: {"model": NackAnswer}, **_errors},
    openapi_extra=body_schema(AckRequest),
)
async def redeliver(
    request: Request,
    services: ServicesDep,
    key: SessionInUrl,
) -> Response:
    """Report messages as not processed. They are delivered again, possibly to another consumer."""
    _, ids, session = await _ids_and_session(request, services, key)
    async with services.consumers.using(key, session):
        await session.redeliver(ids)
    return _json({"redelivered": len(ids)})


@router.delete(f"{SUBSCRIPTION}/consumer", summary="Close a session", status_code=204, responses={404: _errors[404]})
async def close_session(services: ServicesDep, key: SessionInUrl) -> Response:
    """Close the session's consumer now instead of when it is idle. The subscription remains."""
    if not await services.consumers.close_session(key):
        raise NotFoundError(f"no session {key.name!r} is open on subscription {key.subscription!r}", field="session")
    return Response(status_code=204)


async def _ids_and_session(
    request: Request, services: Services, key: SessionKey
) -> tuple[AckRequest, list[MessageId], RestConsumer]:
    body = parsed(AckRequest, await read_body(request, services.config.request_bytes_max))
    ids = [id_from_text(text, f"messageIds.{index}") for index, text in enumerate(body.messageIds)]
    return body, ids, await services.consumers.session(services.caller, key)


def _events(messages: Sequence[MessagePort]) -> str:
    return json.dumps([cloud_events.event_of(message) for message in messages])


def _message(message: MessagePort) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messageId": id_text(message.message_id),
        "payload": None if message.value is None else text_of(message.data),
        "payloadBase64": to_base64(message.data),
        "properties": dict(message.properties or {}),
        "publishTime": iso_time(message.publish_time_ms),
        "redeliveryCount": message.redelivery_count,
        "topic": message.topic,
    }
    if message.key is not None:
        body["key"] = message.key
    if message.event_time_ms:
        body["eventTime"] = iso_time(message.event_time_ms)
    return body


def _json(body: dict[str, Sequence[Any] | Any]) -> Response:
    return Response(json.dumps(body), media_type="application/json")
