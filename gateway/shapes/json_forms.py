"""The JSON forms of payloads, times and message ids, in both directions."""

from __future__ import annotations

import binascii
import json
from datetime import datetime
from typing import Any

from heliograph.base.clock import iso_time, wall_ms
from heliograph.base.errors import BadRequestError, InvalidMessageIdError
from heliograph.gateway.errors import PreconditionError, UnacceptableFieldError
from heliograph.gateway.ports import MessagePort
from heliograph.protocol.message_id import MessageId


def to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def from_base64(text: object, field: str) -> bytes:
    """Return the bytes in strict standard base64; padding may be missing, as Java's decoder allows.

    Raises:
        BadRequestError: the value is not text, or not base64; names the field.
    """
    if not isinstance(text, str):
        raise BadRequestError(f"{field} must be base64 text", field=field)
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"{field} is not base64: {error}", field=field) from error


def compact_json(value: object, field: str) -> str:
    """Return a value as JSON without blanks.

    Raises:
        BadRequestError: it has a number that JSON does not, or is nested too deeply; names the field.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{field} has no form in JSON: {error}", field=field) from error


def text_of(data: bytes) -> str | None:
    """Return the payload as text, None when it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def from_iso_time(text: object, field: str) -> int:
    """Return the milliseconds since the epoch of an ISO-8601 time with an offset.

    Raises:
        BadRequestError: the value is not such a time; names the field.
    """
    try:
        moment = datetime.fromisoformat(text if isinstance(text, str) else "")
    except ValueError as error:
        raise BadRequestError(f"{field} is not an ISO-8601 time: {text!r}", field=field) from error
    if moment.tzinfo is None:
        raise BadRequestError(f"{field} lacks an offset such as Z or +02:00: {text!r}", field=field)
    return round(moment.timestamp() * 1000)


def due_ms(deliver_at: int | None, deliver_after_ms: int | None) -> int | None:
    """Return when a message is due, in milliseconds since the epoch; None for at once."""
    if deliver_after_ms is not None:
        return wall_ms() + deliver_after_ms
    return deliver_at


def id_text(message_id: MessageId) -> str:
    """Return the message id as clients carry it: base64 of its serialized form."""
    return to_base64(message_id.to_bytes())


def id_from_text(text: object, field: str = "messageId") -> MessageId:
    """Return the message id in a text that ``id_text`` made.

    Raises:
        InvalidMessageIdError: the value is not a message id; names the field.
    """
    try:
        return MessageId.from_bytes(from_base64(text, field))
    except InvalidMessageIdError as error:
        raise InvalidMessageIdError(f"{field} is not a message id: {text!r}", field=field) from error
    except BadRequestError as error:
        raise InvalidMessageIdError(str(error), field=field) from error


def message_json(message: MessagePort, id_: str) -> dict[str, Any]:
    """Return the fields of a received message but its payload, in Pulsar's names; ``key`` and ``eventTime`` if set."""
    body: dict[str, Any] = {
        "messageId": id_,
        "properties": dict(message.properties or {}),
        "publishTime": iso_time(message.publish_time_ms),
        "redeliveryCount": message.redelivery_count,
    }
    if message.event_time_ms:
        body["eventTime"] = iso_time(message.event_time_ms)
    if message.key is not None:
        body["key"] = message.key
    return body


DIGITS_MAX = 20  # of a number in text


def number_in_text(value: Any) -> Any:
    """Return the whole number that a text such as ``"3"`` holds, and any other value as it is."""
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) <= DIGITS_MAX:
        return int(value)
    return value


def number_of(body: Any, name: str, lowest: int) -> int:
    """Return a whole number of a body, which may be text.

    Raises:
        UnacceptableFieldError: it is no whole number.
        PreconditionError: it is too low.
    """
    limit = f"a whole number, {lowest} or more"
    body = number_in_text(body)
    if isinstance(body, float) and body.is_integer():
        body = int(body)
    if not isinstance(body, int) or isinstance(body, bool):
        raise UnacceptableFieldError(f"{name} is {body!r}", field=name, limit=limit)
    if body < lowest or body >= 1 << 63:
        raise PreconditionError(f"{name} is {body}", field=name, limit=limit)
    return body
