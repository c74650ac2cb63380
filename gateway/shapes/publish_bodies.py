"""The forms of a publish request's body, by its media type. No I/O.

application/json, application/...+json       Pulsar's request: several messages with their fields
application/octet-stream, text/plain         one message: the body
application/x-ndjson                         one message for each line, which is JSON and is stored as it was sent
application/cloudevents+json                 one CloudEvent
application/cloudevents-batch+json           an array of CloudEvents
any, with the header ce-specversion          one CloudEvent in binary mode: the body is its data
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.base.guard.json_text import parse_json
from heliograph.gateway.errors import MediaTypeError, UnacceptableFieldError
from heliograph.gateway.ports import OutboundMessage
from heliograph.gateway.shapes import cloud_events
from heliograph.gateway.shapes.bodies import (
    JSON,
    REQUEST_MESSAGES_MAX,
    VALUES_MAX,
    ProduceMessage,
    ProduceRequest,
    body_schema,
    media_type_of,
    parsed,
    too_many_messages,
)
from heliograph.gateway.shapes.json_forms import due_ms, from_base64
from heliograph.gateway.shapes.value_schema import ValueSchema, value_schema

BYTES, TEXT, LINES = "application/octet-stream", "text/plain", "application/x-ndjson"
MEDIA_TYPES = (JSON, BYTES, TEXT, LINES, cloud_events.STRUCTURED, cloud_events.BATCHED)
_CHARSETS = {"": "utf-8", "utf-8": "utf-8", "us-ascii": "ascii", "iso-8859-1": "latin-1"}  # other names import modules
_Milliseconds = Annotated[int, Field(ge=0, lt=1 << 63)]


class PublishQuery(BaseModel):
    """Query parameters of a publish request. From ``key`` to ``valueSchema`` they are for bodies that are
    not Pulsar's JSON."""

    compressionType: Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"] = Field(
        "NONE", description="How the entries are compressed when stored"
    )
    key: str | None = Field(None, description="Key of the messages; of a CloudEvent, if it has no partitionkey")
    property: list[str] = Field([], max_length=100, description="`name=value`, added to the properties of each message")
    eventTime: _Milliseconds | None = Field(None, description="Event time in milliseconds since the epoch")
    deliverAt: _Milliseconds | None = Field(None, description="As in a message of Pulsar's request")
    deliverAfterMs: Annotated[int, Field(ge=0, lt=1 << 53)] | None = Field(None, description="The same")
    producerName: str | None = Field(None, description="The same")
    valueSchema: str | None = Field(None, description="The same")
    reply: Literal["wait", "stream"] | None = Field(
        None, description="The body is one request: `wait` answers with its reply, `stream` sends the parts of it"
    )
    replyTimeoutMs: Annotated[int, Field(ge=1, lt=1 << 53)] = Field(
        30_000, description="Time for the whole reply, in milliseconds; the request is not begun later"
    )


@dataclass(frozen=True, slots=True)
class Publish:
    """The messages of a request, and the producer that publishes them."""

    messages: list[OutboundMessage]
    producer_name: str | None
    schema: ValueSchema | None


def form_of(headers: Mapping[str, str]) -> str | None:
    """Return the media type that decides how a body is read; None for a CloudEvent in binary mode."""
    media_type = media_type_of(headers)
    if "ce-specversion" in headers and media_type not in (cloud_events.STRUCTURED, cloud_events.BATCHED):
        return None
    return media_type


def unpacked(form: str | None, headers: Mapping[str, str], query: PublishQuery, raw: bytes) -> Publish:
    """Return the messages in a body. A body that is not acceptable is refused before anything is stored.

    Args:
        form: from ``form_of``.

    Raises:
        MalformedJsonError: the body is not JSON.
        BadRequestError, UnacceptableFieldError, UnsupportedError: a field is not acceptable; names it.
        MessageTooLargeError: there are too many messages.
    """
    if form is None:
        return _with_query([cloud_events.from_headers(headers, raw)], query, "event")
    if form == BYTES:
        return _with_query([OutboundMessage(raw)], query, "body")
    if form == TEXT:
        return _with_query([OutboundMessage(_text(headers, raw))], query, "body")
    if form == LINES:
        return _with_query(_lines(raw), query, "lines")
    if form == cloud_events.STRUCTURED:
        return _with_query([cloud_events.from_json(_json(raw), "event")], query, "event")
    if form == cloud_events.BATCHED:
        return _with_query(_events(raw), query, "events")
    return _of_pulsar(raw, query)


def bodies_schema() -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route that takes these bodies."""
    extra = body_schema(ProduceRequest)
    content = extra["requestBody"]["content"]
    event = {
        "type": "object",
        "description": "A CloudEvent; further members are extensions",
        "required": ["specversion", "id", "source", "type"],
        "properties": {
            "specversion": {"const": cloud_events.VERSION},
            **{name: {"type": "string", "minLength": 1} for name in ("id", "source", "type")},
            "time": {"type": "string", "format": "date-time", "description": "Becomes the event time"},
            "subject": {"type": "string"},
            "partitionkey": {"type": "string", "description": "Becomes the key"},
            "datacontenttype": {"type": "string"},
            "data": {"description": "Any JSON"},
            "data_base64": {"type": "string"},
        },
    }
    content[BYTES] = {"schema": {"type": "string", "format": "binary", "description": "One message"}}
    content[TEXT] = {"schema": {"type": "string", "description": "One message, stored as UTF-8"}}
    content[LINES] = {"schema": {"type": "string", "description": "One message for each line, which is JSON"}}
    content[cloud_events.STRUCTURED] = {"schema": event}
    content[cloud_events.BATCHED] = {"schema": {"type": "array", "items": event}}
    return extra


def _of_pulsar(raw: bytes, query: PublishQuery) -> Publish:
    if stray := sorted(query.model_fields_set - {"compressionType", "reply", "replyTimeoutMs"}):
        raise BadRequestError(
            f"the parameter {stray[0]} is for bodies that are no list of messages: give it with the message",
            field=stray[0],
        )
    body = parsed(ProduceRequest, raw)
    if body.keySchema:
        raise UnsupportedError("key schemas are not supported: send without keySchema", field="keySchema")
    messages = [_message(message, f"messages.{index}") for index, message in enumerate(body.messages)]
    return _encoded(messages, body.producerName, body.valueSchema, "messages")


def _message(message: ProduceMessage, where: str) -> OutboundMessage:
    if message.deliverAt is not None and message.deliverAfterMs is not None:
        raise BadRequestError(f"{where} has deliverAt and deliverAfterMs", field=f"{where}.deliverAt")
    if message.replicationClusters:
        raise UnsupportedError(
            "replicationClusters is not supported: there is one cluster only", field=f"{where}.replicationClusters"
        )
    is_null = message.payload is None and message.payloadBase64 is None
    if "payload" not in message.model_fields_set if is_null else None not in (message.payload, message.payloadBase64):
        raise BadRequestError(f"{where} needs payload or payloadBase64, and not both", field=f"{where}.payload")
    if message.payload is not None or is_null:
        payload = None if message.payload is None else message.payload.encode()
    else:
        payload = from_base64(message.payloadBase64, f"{where}.payloadBase64")
    due = due_ms(message.deliverAt, message.deliverAfterMs)
    return OutboundMessage(payload, message.key, message.properties or None, message.eventTime, due)


def _with_query(messages: list[OutboundMessage], query: PublishQuery, where: str) -> Publish:
    """Add the fields that the query sets for all messages. A field of the message itself prevails."""
    if query.deliverAt is not None and query.deliverAfterMs is not None:
        raise BadRequestError("give deliverAt or deliverAfterMs, not both", field="deliverAt")
    due = due_ms(query.deliverAt, query.deliverAfterMs)
    more = dict(_property(text) for text in query.property)
    completed = [
        replace(
            message,
            key=query.key if message.key is None else message.key,
            properties={**more, **(message.properties or {})} or None,
            event_time_ms=query.eventTime if message.event_time_ms is None else message.event_time_ms,
            deliver_at=due,
        )
        for message in messages
    ]
    return _encoded(completed, query.producerName, query.valueSchema, where)


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UnacceptableFieldError(f"the property {text[:100]!r} is not name=value", field="property")
    return name, value


def _encoded(messages: list[OutboundMessage], producer: str | None, schema_text: str | None, where: str) -> Publish:
    schema = value_schema(schema_text)
    if schema is not None:
        messages = [
            message
            if message.payload is None
            else replace(message, payload=schema.payload_of(message.payload, f"{where}.{index}.payload"))
            for index, message in enumerate(messages)
        ]
    return Publish(messages, producer, schema)


def _text(headers: Mapping[str, str], raw: bytes) -> bytes:
    """Return a body of text in UTF-8."""
    _, _, charset = headers.get("content-type", "").partition("charset=")
    name = charset.partition(";")[0].strip(' "').lower()
    if name not in _CHARSETS:
        known = ", ".join(filter(None, _CHARSETS))
        raise MediaTypeError(f"charset {name[:100]!r} is not taken", field="Content-Type", limit=known)
    try:
        return raw.decode(_CHARSETS[name]).encode()
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the body is not text in {_CHARSETS[name]}: {error}", field="body") from error


def _lines(raw: bytes) -> list[OutboundMessage]:
    lines = [line for line in map(bytes.strip, raw.split(b"\n")) if line]
    if not lines:
        raise BadRequestError("the body has no line", field="body")
    if len(lines) > REQUEST_MESSAGES_MAX:
        raise too_many_messages("lines")
    for index, line in enumerate(lines):
        _json(line, f"lines.{index}")
    return [OutboundMessage(line) for line in lines]


def _events(raw: bytes) -> list[OutboundMessage]:
    events = _json(raw)
    if not isinstance(events, list):
        raise BadRequestError("a batch of CloudEvents is a JSON array", field="body")
    if len(events) > REQUEST_MESSAGES_MAX:
        raise too_many_messages("events")
    return [cloud_events.from_json(event, f"events.{index}") for index, event in enumerate(events)]


def _json(raw: bytes, where: str = "body") -> Any:
    return parse_json(raw, where, where, values_max=VALUES_MAX, is_content=True)
