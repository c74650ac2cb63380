"""The JSON frames of Pulsar's WebSocket API, both ways: pure functions.

Beyond Pulsar, a consumer may send ``{"type": "cumulativeAck", "messageId": id}`` and
``{"type": "seek", "messageId": id | "earliest" | "latest", "inclusive": false}`` or
``{"type": "seek", "timestamp": ms}``: delivery goes on behind that message (with it, if inclusive), or with the first
message published at that time or later. Any consumer
command may carry a ``context`` (text): once the command is done, and durable where it stores something, the answer is
``{"result": "ok", "context": ...}``. A frame that cannot be honoured is answered with
``{"result": "command-error:<n>", "errorMsg": ..., "context": ...}`` and the session goes on. The numbers are those of a
producer's ``send-error:<n>``: 3 the frame is no JSON object, 7 a field does not fit, 8 it was tried and failed.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

from gateway.errors import MalformedJsonError
from gateway.json_forms import (
    check_encodable,
    due_ms,
    from_base64,
    from_iso_time,
    id_from_text,
    json_object,
    properties_of,
)
from heliograph.errors import BadRequestError, HeliographError, MessageTooLargeError, UnsupportedError
from heliograph.protocol.message_id import MessageId

BAD_JSON = 3
BAD_FIELD = 7
FAILED = 8


class FrameProblem(Exception):
    """A frame is answered with an error. Never leaves this package.

    Args:
        code: 3, 7 or 8, as above.
        error: what is wrong.
        context: the frame's own, where it could be read.
    """

    def __init__(self, code: int, error: HeliographError, context: str | None = None) -> None:
        super().__init__(str(error))
        self.code = code
        self.error = error
        self.context = context


@dataclass(frozen=True, slots=True)
class SendFrame:
    """One message to publish."""

    payload: bytes
    key: str | None
    properties: dict[str, str] | None
    event_time_ms: int | None
    context: str | None
    deliver_at: int | None = None


class CommandKind(enum.Enum):
    """What a consumer's frame asks for, by its ``type``; an unknown or missing type is an acknowledgement."""

    ACK = "ack"
    NACK = "negativeAcknowledge"
    CUMULATIVE_ACK = "cumulativeAck"
    PERMIT = "permit"
    SEEK = "seek"
    UNSUBSCRIBE = "unsubscribe"
    END_OF_TOPIC = "isEndOfTopic"


@dataclass(frozen=True, slots=True)
class Command:
    """One frame of a consumer. ``position`` is a seek's: a MessageId, "earliest", "latest" or milliseconds."""

    kind: CommandKind
    context: str | None = None
    message_id: MessageId | None = None
    permits: int = 0
    position: MessageId | str | int | None = None
    inclusive: bool = False


_KINDS = {kind.value: kind for kind in CommandKind}
_NOT_OFFERED = ("encryptionParam", "replicationClusters")


def send_frame(text: str | None, payload_bytes_max: int) -> SendFrame:
    """The message in a producer's frame.

    Raises:
        FrameProblem: with 3 when it is no JSON object, 7 when a field does not fit, 8 when the payload is too large.
    """
    frame = _parsed(text)
    context = _context(frame)
    try:
        for name in _NOT_OFFERED:
            if frame.get(name):
                raise UnsupportedError(f"{name} is not supported", field=name)
        event_time = frame.get("eventTime")
        payload = from_base64(frame.get("payload"), "payload")
        sent = SendFrame(
            payload,
            _key(frame.get("key")),
            properties_of(frame.get("properties")),
            None if event_time is None else from_iso_time(event_time, "eventTime"),
            context,
            _due(frame),
        )
    except HeliographError as error:
        raise FrameProblem(BAD_FIELD, error, context) from error
    if len(payload) > payload_bytes_max:
        message = f"the payload has {len(payload)} bytes, the limit is {payload_bytes_max}"
        limit = f"{payload_bytes_max} bytes"
        raise FrameProblem(FAILED, MessageTooLargeError(message, field="payload", limit=limit), context)
    return sent


def command(text: str | None) -> Command:
    """The command in a consumer's frame.

    Raises:
        FrameProblem: with 3 when it is no JSON object, 7 when a field does not fit.
    """
    frame = _parsed(text)
    context = _context(frame)
    type_ = frame.get("type")
    kind = _KINDS.get(type_, CommandKind.ACK) if isinstance(type_, str) else CommandKind.ACK
    try:
        match kind:
            case CommandKind.ACK | CommandKind.NACK | CommandKind.CUMULATIVE_ACK:
                return Command(kind, context, message_id=id_from_text(frame.get("messageId")))
            case CommandKind.PERMIT:
                return Command(kind, context, permits=_permits(frame.get("permitMessages")))
            case CommandKind.SEEK:
                return Command(kind, context, position=_position(frame), inclusive=frame.get("inclusive") is True)
            case _:
                return Command(kind, context)
    except HeliographError as error:
        raise FrameProblem(BAD_FIELD, error, context) from error


def is_end_of_topic_question(text: str | None) -> bool:
    """Whether a reader's frame asks for the end of the topic; any other JSON object confirms one message.

    Raises:
        FrameProblem: with 3 when it is no JSON object.
    """
    return bool(_parsed(text).get("type") == CommandKind.END_OF_TOPIC.value)


def receipt(message_id: str, context: str | None) -> str:
    """A producer's answer: the message is durable."""
    # Written by hand: json.dumps of this shape costs several times as much, once for every message.
    tail = "" if context is None else f',"context":{json.dumps(context)}'
    return f'{{"result":"ok","messageId":"{message_id}"{tail},"errorCode":0,"schemaVersion":0}}'


def send_error(code: int, reason: str, context: str | None) -> str:
    """A producer's answer: the message was not stored, or nobody knows."""
    body: dict[str, Any] = {"result": f"send-error:{code}", "errorMsg": reason}
    if context is not None:
        body["context"] = context
    return json.dumps({**body, "errorCode": 0, "schemaVersion": 0})


def command_done(context: str) -> str:
    """A consumer's answer to a command that carried a context."""
    return json.dumps({"result": "ok", "context": context})


def command_error(code: int, reason: str, context: str | None) -> str:
    """A consumer's or reader's answer to a frame that could not be honoured."""
    body: dict[str, Any] = {"result": f"command-error:{code}", "errorMsg": reason}
    if context is not None:
        body["context"] = context
    return json.dumps(body)


def end_of_topic(reached: bool) -> str:
    """The answer to isEndOfTopic."""
    return json.dumps({"endOfTopic": reached})


def _parsed(text: str | None) -> dict[str, Any]:
    if text is None:
        raise FrameProblem(BAD_JSON, MalformedJsonError("frames are JSON in text, not binary", field="frame"))
    try:
        return json_object(json.loads(text), "frame")
    except MalformedJsonError as error:
        raise FrameProblem(BAD_JSON, error) from error
    except (ValueError, RecursionError) as error:
        raise FrameProblem(BAD_JSON, MalformedJsonError(f"the frame is not JSON: {error}", field="frame")) from error


def _context(frame: dict[str, Any]) -> str | None:
    context = frame.get("context")
    if context is None or isinstance(context, str):
        return context
    return json.dumps(context)  # Pulsar's parser turns a number here into text as well


def _key(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRequestError("key must be text", field="key")
    check_encodable(value, "key")
    return value


def _due(frame: dict[str, Any]) -> int | None:
    """When the message is due: ``deliverAt`` in ms since the epoch, or ``deliverAfterMs`` from now on."""
    found: dict[str, int] = {}
    for name in ("deliverAt", "deliverAfterMs"):
        value = frame.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
            raise BadRequestError(f"{name} must be milliseconds", field=name, limit="0 to 2^53")
        found[name] = value
    if len(found) > 1:
        raise BadRequestError("give deliverAt or deliverAfterMs, not both", field="deliverAt")
    return due_ms(found.get("deliverAt"), found.get("deliverAfterMs"))


def _permits(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequestError("permitMessages must be a whole number above 0", field="permitMessages", limit=">= 1")
    return value


def _position(frame: dict[str, Any]) -> MessageId | str | int:
    id_, timestamp = frame.get("messageId"), frame.get("timestamp")
    if (id_ is None) == (timestamp is None):
        raise BadRequestError("a seek needs messageId or timestamp, and not both", field="messageId")
    if timestamp is not None:
        if not isinstance(timestamp, int) or isinstance(timestamp, bool) or timestamp < 0:
            raise BadRequestError("timestamp must be milliseconds since the epoch", field="timestamp")
        return timestamp
    return id_ if id_ in ("earliest", "latest") else id_from_text(id_)
