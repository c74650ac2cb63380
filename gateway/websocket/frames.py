"""The JSON frames of Pulsar's WebSocket API, in both directions. No I/O.

Beyond Pulsar, a consumer may send ``{"type": "cumulativeAck", "messageId": id}`` and
``{"type": "seek", "messageId": id | "earliest" | "latest", "inclusive": false}`` or
``{"type": "seek", "timestamp": ms}``: delivery continues after that message (with it, if inclusive), or with the first
message published at that time or later. Any consumer command may carry a ``context`` (text): once the command is
done, and durable where it stores something, the answer is ``{"result": "ok", "context": ...}``. A frame that is
refused is answered with ``{"result": "command-error:<n>", "errorMsg": ..., "context": ...}`` and the session
continues. The numbers are those of a producer's ``send-error:<n>``: 3 the frame is not a JSON object, 7 a field is not
acceptable, 8 the operation failed.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, StrictInt, ValidationError, ValidationInfo
from typing_extensions import override

from heliograph.base.errors import BadRequestError, HeliographError, MalformedJsonError, MessageTooLargeError
from heliograph.base.guard.json_text import parse_json
from heliograph.gateway.shapes.bodies import refusal, refused
from heliograph.gateway.shapes.json_forms import from_iso_time, id_from_text
from heliograph.gateway.shapes.payload_forms import PayloadFormat, payload_of
from heliograph.gateway.shapes.value_schema import ValueSchema
from heliograph.protocol.message_id import MessageId

BAD_JSON = 3
BAD_FIELD = 7
FAILED = 8
FRAME_VALUES_MAX = 64 * 1024  # a parser takes all of them before others have a turn

F = TypeVar("F", bound="_Frame")


class RefusedFrame(Exception):
    """A frame that is answered with an error. It never leaves this package.

    Args:
        code: 3, 7 or 8, as above.
        error: the reason for the refusal.
        context: the frame's context, if it could be read.
    """

    def __init__(self, code: int, error: HeliographError, context: str | None = None) -> None:
        super().__init__(str(error))
        self.code = code
        self.error = error
        self.context = context


def _context_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)  # Pulsar's parser turns a number into text as well


def _message_id_or_word(value: object) -> MessageId | str:
    return value if value in ("earliest", "latest") else id_from_text(value)


def _payload(value: object, info: ValidationInfo) -> bytes | None:
    given = info.context or {}
    payload = payload_of(value, given.get("form", "base64"), "payload")
    schema: ValueSchema | None = given.get("schema")
    return payload if schema is None or payload is None else schema.payload_of(payload, "payload")


_Milliseconds = Annotated[StrictInt, Field(ge=0, lt=1 << 53)]


class _Frame(BaseModel):
    context: Annotated[str, BeforeValidator(_context_text)] | None = None

    def check(self) -> None:
        """Check fields against each other. Raises BadRequestError."""


class SendFrame(_Frame):
    """One message to publish. Field names are Pulsar's; unknown fields are ignored."""

    payload: Annotated[bytes | None, PlainValidator(_payload)]  # None: a null value, which deletes its key
    key: str | None = None
    properties: dict[str, str] | None = None
    eventTime: Annotated[int, PlainValidator(lambda value: from_iso_time(value, "eventTime"))] | None = None
    deliverAt: _Milliseconds | None = None
    deliverAfterMs: _Milliseconds | None = None
    encryptionParam: Annotated[Any, refused("encrypt on the client and send the bytes as payload")] = None
    replicationClusters: Annotated[Any, refused("there is one cluster only")] = None

    @override
    def check(self) -> None:
        if self.deliverAt is not None and self.deliverAfterMs is not None:
            raise BadRequestError("give deliverAt or deliverAfterMs, not both", field="deliverAt")


class ConsumerCommand(_Frame):
    """One frame of a consumer; its class is chosen by ``type``."""


class MessageCommand(ConsumerCommand):
    """A command about one message."""

    messageId: Annotated[MessageId, PlainValidator(id_from_text)]


class AckCommand(MessageCommand):
    """Acknowledge one message. A missing or unknown ``type`` means this, as in Pulsar."""


class NackCommand(MessageCommand):
    """Deliver one message again."""


class CumulativeAckCommand(MessageCommand):
    """Acknowledge every message up to and including one."""


class PermitCommand(ConsumerCommand):
    """Allow the gateway to send more messages, in pull mode."""

    permitMessages: Annotated[StrictInt, Field(ge=1)]


class SeekCommand(ConsumerCommand):
    """Continue delivery elsewhere: exactly one of ``messageId`` and ``timestamp``, milliseconds since the epoch."""

    messageId: Annotated[MessageId | str, PlainValidator(_message_id_or_word)] | None = None
    timestamp: Annotated[StrictInt, Field(ge=0)] | None = None
    inclusive: Annotated[bool, PlainValidator(lambda value: value is True)] = False

    @override
    def check(self) -> None:
        if (self.messageId is None) == (self.timestamp is None):
            raise BadRequestError("a seek needs messageId or timestamp, and not both", field="messageId")


class UnsubscribeCommand(ConsumerCommand):
    """Delete the subscription."""


class EndOfTopicCommand(ConsumerCommand):
    """Ask whether the topic was terminated and everything of it was received and acknowledged."""


_END_OF_TOPIC = "isEndOfTopic"
_COMMANDS: dict[str, type[ConsumerCommand]] = {
    "ack": AckCommand,
    "negativeAcknowledge": NackCommand,
    "cumulativeAck": CumulativeAckCommand,
    "permit": PermitCommand,
    "seek": SeekCommand,
    "unsubscribe": UnsubscribeCommand,
    _END_OF_TOPIC: EndOfTopicCommand,
}


def send_frame(
    text: str | None, payload_bytes_max: int, form: PayloadFormat = "base64", schema: ValueSchema | None = None
) -> SendFrame:
    """Return the message in a producer's frame.

    Args:
        form: of the payload in the frame.
        schema: of its value, with which this takes long enough for a thread; None: the payload is stored as it is.

    Raises:
        RefusedFrame: with 3 when it is not a JSON object, 7 when a field is not acceptable, 8 when the payload is too
            large.
    """
    if schema is not None:
        schema.renew()
    frame = _validated(SendFrame, _parsed(text), form, schema)
    if frame.payload is not None and len(frame.payload) > payload_bytes_max:
        message = f"the payload has {len(frame.payload)} bytes, the limit is {payload_bytes_max}"
        limit = f"{payload_bytes_max} bytes"
        raise RefusedFrame(FAILED, MessageTooLargeError(message, field="payload", limit=limit), frame.context)
    return frame


def consumer_command(text: str | None) -> ConsumerCommand:
    """Return the command in a consumer's frame.

    Raises:
        RefusedFrame: with 3 when it is not a JSON object, 7 when a field is not acceptable.
    """
    fields = _parsed(text)
    type_ = fields.get("type")
    return _validated(_COMMANDS.get(type_, AckCommand) if isinstance(type_, str) else AckCommand, fields)


def is_end_of_topic_question(text: str | None) -> bool:
    """Return whether a reader's frame asks for the end of the topic; any other JSON object confirms one message.

    Raises:
        RefusedFrame: with 3 when it is not a JSON object.
    """
    return bool(_parsed(text).get("type") == _END_OF_TOPIC)


def receipt(message_id: str, context: str | None) -> str:
    """Return a producer's answer: the message is durable."""
    # Written by hand: json.dumps of this shape costs several times as much, once for every message.
    tail = "" if context is None else f',"context":{json.dumps(context)}'
    return f'{{"result":"ok","messageId":"{message_id}"{tail},"errorCode":0,"schemaVersion":0}}'


def send_error(code: int, reason: str, context: str | None) -> str:
    """Return a producer's answer: the message was not stored, or the outcome is unknown."""
    return json.dumps({**_failure(f"send-error:{code}", reason, context), "errorCode": 0, "schemaVersion": 0})


def command_done(context: str) -> str:
    """Return a consumer's answer to a command that carried a context."""
    return json.dumps({"result": "ok", "context": context})


def command_error(code: int, reason: str, context: str | None) -> str:
    """Return a consumer's or reader's answer to a frame that was refused or a command that failed."""
    return json.dumps(_failure(f"command-error:{code}", reason, context))


def end_of_topic(reached: bool) -> str:
    return json.dumps({"endOfTopic": reached})


def _failure(result: str, reason: str, context: str | None) -> dict[str, Any]:
    return {"result": result, "errorMsg": reason, **({} if context is None else {"context": context})}


def _parsed(text: str | None) -> dict[str, Any]:
    if text is None:
        raise _bad_json("a frame is JSON in text, not binary")
    try:
        frame = parse_json(text, "the frame", "frame", values_max=FRAME_VALUES_MAX)
    except MalformedJsonError as error:
        raise RefusedFrame(BAD_JSON, error) from error
    if not isinstance(frame, dict):
        raise _bad_json(f"a frame must be a JSON object, not {type(frame).__name__}")
    return frame


def _bad_json(reason: str) -> RefusedFrame:
    return RefusedFrame(BAD_JSON, MalformedJsonError(reason, field="frame"))


def _validated(
    model: type[F], fields: dict[str, Any], form: PayloadFormat = "base64", schema: ValueSchema | None = None
) -> F:
    try:
        frame = model.model_validate(fields, context={"form": form, "schema": schema})
        frame.check()
        return frame
    except (HeliographError, ValidationError) as error:
        context = fields.get("context")
        problem = refusal(error) if isinstance(error, ValidationError) else error
        raise RefusedFrame(BAD_FIELD, problem, None if context is None else _context_text(context)) from error
