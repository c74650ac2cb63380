"""Ray's own events, kept in a topic: each node's agent posts what happened to actors, jobs, nodes and tasks.

``RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR`` of Ray names this endpoint.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from heliograph.base.errors import BadRequestError, HeliographError, MessageTooLargeError, UnsupportedError
from heliograph.base.guard.json_text import parse_json
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.gateway.http.door import RAY_EVENTS
from heliograph.gateway.http.metrics import REST
from heliograph.gateway.ports import OutboundMessage, ProducerPort
from heliograph.gateway.services import ServicesDep
from heliograph.gateway.sessions.producers import ProducerKind
from heliograph.gateway.shapes.bodies import ErrorBody, read_body
from heliograph.protocol.message_id import MessageId

EVENTS_MAX = 10_000  # of one request; Ray's agents send at most 1,000  # I15
VALUES_MAX = 1_000_000  # of JSON in one request
TEXT_CHARACTERS_MAX = 256  # of a field that becomes a key or a property
# Ids in the details of an event, of which the first one is the key of its message.
_IDS = ("actorId", "taskId", "jobId", "workerId", "nodeId", "submissionId")
_ENVELOPE = ("eventId", "sourceType", "eventType", "severity", "sessionName")  # become properties
_SCHEMA = {"type": "array", "items": {"type": "object"}, "maxItems": EVENTS_MAX}

router = APIRouter(tags=["produce"])
_quiet = QuietLog(logging.getLogger(__name__))


@router.post(
    RAY_EVENTS,
    summary="Keep events of Ray",
    responses={
        400: {"model": ErrorBody, "description": "That is no list of events"},
        404: {"model": ErrorBody, "description": "The topic for events does not exist"},
        501: {"model": ErrorBody, "description": "The operator has named no topic for events"},
        413: {"model": ErrorBody, "description": "Too many events, or too many bytes"},
        503: {"model": ErrorBody, "description": "Not all of them could be stored now; they may be sent again"},
    },
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}},
)
async def keep_events(request: Request, services: ServicesDep) -> dict[str, int]:
    """Store a list of Ray's events, each as a message of the topic `ray_events_topic`.

    The key is the id of the actor, task, job, worker or node, so that its events stay in order; `eventType` and its
    siblings are properties. The answer comes once all are durable. Ray repeats what is not answered, so an event may be
    stored twice: `eventId` tells. An event above the topic's largest message, or with a text that is no UTF-8, would
    fail each time: it is left out, counted in `leftOut` and told in the gateway's log.
    """
    topic = services.config.ray_events_topic
    if not topic:
        raise UnsupportedError("this gateway keeps no events of Ray: set ray_events_topic", field="ray_events_topic")
    raw = await read_body(request, services.config.request_bytes_max)
    messages, left_out = await asyncio.to_thread(_messages_in, raw)
    del raw
    if not messages:
        return _answer(0, left_out)
    async with services.producers.lease(services.caller, topic, ProducerKind()) as producer:
        outcomes = await _send(producer, messages)
    stored = [message for message, outcome in zip(messages, outcomes, strict=True) if isinstance(outcome, MessageId)]
    services.metrics.produced(REST, len(stored), sum(len(message.payload or b"") for message in stored))
    services.metrics.failed(REST, len(messages) - len(stored))
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    lasting = [failure for failure in failures if not isinstance(failure, MessageTooLargeError)]
    if lasting:
        await services.producers.drop(topic)  # the next request opens another, or fails with the reason
        raise lasting[0]
    return _answer(len(stored), left_out + len(failures))


def _answer(stored: int, left_out: int) -> dict[str, int]:
    if left_out:
        _quiet.warning("left out", "%d events of Ray are left out: they are too large, or no UTF-8", left_out)
    return {"stored": stored, "leftOut": left_out}


async def _send(producer: ProducerPort, messages: list[OutboundMessage]) -> list[MessageId | BaseException]:
    sending: list[asyncio.Future[MessageId]] = []
    for message in messages:
        try:
            given: dict[str, Any] = {"properties": message.properties, "event_time_ms": message.event_time_ms}
            sending.append(await producer.enqueue(message.payload, key=message.key, **given))
        except MessageTooLargeError as error:
            sending.append(_failed(error))
        except HeliographError as error:
            return [*await asyncio.gather(*sending, return_exceptions=True), *[error] * (len(messages) - len(sending))]
    return await asyncio.gather(*sending, return_exceptions=True)


def _failed(error: HeliographError) -> asyncio.Future[MessageId]:
    future: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _messages_in(raw: bytes) -> tuple[list[OutboundMessage], int]:
    """Return the messages of a body, and how many events are left out since they cannot be stored as UTF-8."""
    events = parse_json(raw, "the body", "body", values_max=VALUES_MAX, is_content=True)
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise BadRequestError("the body is no list of events", field="body", limit="a list of JSON objects")
    if len(events) > EVENTS_MAX:
        raise BadRequestError(f"there are {len(events)} events", field="body", limit=f"{EVENTS_MAX} events")
    found = [message for event in events if (message := _message_of(event)) is not None]
    return found, len(events) - len(found)


def _message_of(event: dict[str, Any]) -> OutboundMessage | None:
    try:
        payload = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # an escape such as \ud800, which is half a character
        return None
    properties = {name: text for name in _ENVELOPE if (text := _text(event.get(name)))}
    details = (value for value in event.values() if isinstance(value, dict))
    ids = (_text(each.get(name)) for each in details for name in _IDS)
    return OutboundMessage(payload, next(filter(None, ids), None), properties, _milliseconds(event.get("timestamp")))


def _text(value: Any) -> str:
    """Return a text that may be a key or a property; empty for anything else."""
    return value if isinstance(value, str) and len(value) <= TEXT_CHARACTERS_MAX and value.isprintable() else ""


def _milliseconds(value: Any) -> int | None:
    """Return a time as Ray writes it, such as 2026-01-31T12:00:00.123456789Z, in ms since the epoch."""
    if not isinstance(value, str):
        return None
    try:
        return max(round(datetime.fromisoformat(value[:64]).timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        return None
