"""Payloads in the JSON of frames and events: as base64, as text, or as the JSON value that they hold. No I/O."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Literal

from heliograph.base.errors import BadRequestError, HeliographError, MalformedJsonError
from heliograph.base.guard.json_text import parse_json
from heliograph.gateway.ports import MessagePort
from heliograph.gateway.shapes.bodies import VALUES_MAX
from heliograph.gateway.shapes.json_forms import (
    compact_json,
    from_base64,
    message_json,
    text_of,
    to_base64,
)

PayloadFormat = Literal["base64", "text", "json"]


def payload_of(value: object, form: PayloadFormat, field: str) -> bytes | None:
    """Return the payload that a value of JSON stands for; None for null, which is a null value in every form.

    Raises:
        BadRequestError: the value has no such form; names the field.
    """
    if value is None:
        return None
    if form == "base64":
        return from_base64(value, field)
    if form == "text" and not isinstance(value, str):
        raise BadRequestError(f"{field} must be text", field=field)
    text = value if form == "text" and isinstance(value, str) else compact_json(value, field)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequestError(f"{field} has half of a surrogate pair", field=field) from error


def message_text(message: MessagePort, id_: str, form: PayloadFormat) -> str:
    """Return a received message as JSON in one line. ``payload`` has the form, of the value if the receiver has a
    schema. It is null for a null value, and where there is no such form: the payload is in ``payloadBase64`` then."""
    body: dict[str, Any] = message_json(message, id_)
    try:
        data = message.value
    except HeliographError:  # it does not fit the schema
        return json.dumps(body | {"payload": None, "payloadBase64": to_base64(message.data)})
    if data is None or form == "base64":
        return json.dumps(body | {"payload": None if data is None else to_base64(data)})
    text = text_of(data)
    value: Any = text
    is_there = text is not None
    if form == "json" and text is not None:
        try:
            value = parse_json(text, "the message", "payload", values_max=VALUES_MAX, is_content=True)
        except MalformedJsonError:
            value, is_there = None, False
    body["payload"] = value
    if is_there:
        with contextlib.suppress(ValueError):  # a number that is above every one of JSON's readers
            return json.dumps(body, allow_nan=False)
        body["payload"] = None
    body["payloadBase64"] = to_base64(message.data)
    return json.dumps(body)
