"""CloudEvents 1.0 as messages, and messages as CloudEvents. No I/O.

An event is stored the same way in whichever mode it was sent: its data is the payload, ``datacontenttype`` is the
property ``content-type``, and every other attribute is a property with the prefix ``ce_``, in the canonical text form
of the attribute. The extension ``partitionkey`` is also the message's key, and ``time`` its event time. This is the
mapping of the Kafka binding of CloudEvents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from heliograph.base.clock import iso_time
from heliograph.base.errors import BadRequestError
from heliograph.base.guard.json_text import parse_json
from heliograph.gateway.ports import MessagePort, OutboundMessage
from heliograph.gateway.shapes.bodies import VALUES_MAX
from heliograph.gateway.shapes.json_forms import compact_json, from_base64, from_iso_time, id_text, text_of, to_base64

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
HEADER_PREFIX = "ce-"
PROPERTY_PREFIX = "ce_"
CONTENT_TYPE = "content-type"
VERSION = "1.0"
MESSAGE_TYPE = "heliograph.message"  # of an event that is made of a message which was not sent as one
_REQUIRED = ("id", "source", "type")
_NAME = re.compile(r"[a-z0-9]+")
_JSON_TYPE = re.compile(r"[^/;\s]+/(?:[^/;\s]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_TEXT_TYPE = re.compile(r"text/.*", re.IGNORECASE | re.DOTALL)
_INT32 = range(-(1 << 31), 1 << 31)
_DATA = ("data", "data_base64")


def from_json(event: object, where: str) -> OutboundMessage:
    """Return the message for an event in JSON.

    Args:
        where: names the event in errors, such as ``events.3``.

    Raises:
        BadRequestError: it is not an event of version 1.0; names the attribute.
    """
    if not isinstance(event, dict):
        raise BadRequestError(f"{where} is not a JSON object", field=where)
    attributes = {
        name: _canonical(value, f"{where}.{name}")
        for name, value in event.items()
        if name not in _DATA and value is not None
    }
    data, data_base64 = event.get("data"), event.get("data_base64")
    if data is not None and data_base64 is not None:
        raise BadRequestError(f"{where} has data and data_base64", field=f"{where}.data")
    if data_base64 is not None:
        return _publication(attributes, from_base64(data_base64, f"{where}.data_base64"), where)
    if data is None:
        return _publication(attributes, b"", where)
    content_type = attributes.setdefault("datacontenttype", "application/json")
    is_text = isinstance(data, str) and not _JSON_TYPE.fullmatch(content_type)
    text = data if is_text else compact_json(data, f"{where}.data")
    try:
        return _publication(attributes, text.encode(), where)
    except UnicodeEncodeError as error:
        raise BadRequestError(f"{where}.data has half of a surrogate pair", field=f"{where}.data") from error


def from_headers(headers: Mapping[str, str], data: bytes) -> OutboundMessage:
    """Return the message for an event in binary mode: attributes are headers, the body is the data.

    Raises:
        BadRequestError: it is not an event of version 1.0; names the attribute.
    """
    attributes = {
        name.removeprefix(HEADER_PREFIX): _from_header(value, name)
        for name, value in headers.items()
        if name.startswith(HEADER_PREFIX)
    }
    if content_type := headers.get(CONTENT_TYPE):
        attributes["datacontenttype"] = content_type
    return _publication(attributes, data, "event")


def event_of(message: MessagePort) -> dict[str, Any]:
    """Return a received message as an event in JSON.

    The extensions ``messageid``, ``publishtime`` and ``redeliverycount`` are those of the delivery. A message that was
    not sent as an event has its message id as ``id`` and its topic as ``source``.
    """
    properties = message.properties or {}
    id_ = id_text(message.message_id)
    event: dict[str, Any] = {"specversion": VERSION, "id": id_, "source": message.topic, "type": MESSAGE_TYPE}
    if message.event_time_ms:
        event["time"] = iso_time(message.event_time_ms)
    if message.key is not None:
        event["partitionkey"] = message.key
    for name, value in properties.items():
        attribute = name.removeprefix(PROPERTY_PREFIX)
        if attribute != name and _NAME.fullmatch(attribute):
            event[attribute] = value
    event |= {
        "messageid": id_,
        "publishtime": iso_time(message.publish_time_ms),
        "redeliverycount": message.redelivery_count,
    }
    if content_type := properties.get(CONTENT_TYPE):
        event["datacontenttype"] = content_type
    if message.data:
        event |= _data(message.data, content_type)
    return event


def _data(payload: bytes, content_type: str | None) -> dict[str, Any]:
    text = text_of(payload)
    if text is not None and content_type is None:
        return {"datacontenttype": "text/plain", "data": text}
    if text is not None and content_type is not None:
        if _JSON_TYPE.fullmatch(content_type):
            try:
                value = parse_json(text, "the message", "data", values_max=VALUES_MAX, is_content=True)
                compact_json(value, "data")  # a number may be above every one of JSON's readers
                return {"data": value}
            except BadRequestError:
                pass  # the payload is not what its producer says
        elif _TEXT_TYPE.fullmatch(content_type):
            return {"data": text}
    return {"data_base64": to_base64(payload)}


def _publication(attributes: Mapping[str, str], payload: bytes, where: str) -> OutboundMessage:
    version = attributes.get("specversion")
    if version != VERSION:
        raise BadRequestError(
            f"{where}.specversion is {version!r}", field=f"{where}.specversion", limit=f"version {VERSION}"
        )
    for name in _REQUIRED:
        if not attributes.get(name):
            raise BadRequestError(f"{where} has no {name}", field=f"{where}.{name}")
    for name in attributes:
        if not _NAME.fullmatch(name):
            shown = f"{where}.{name[:100]}"
            raise BadRequestError(f"{shown} is no name of an attribute", field=shown, limit="a to z and 0 to 9")
    properties = {
        CONTENT_TYPE if name == "datacontenttype" else PROPERTY_PREFIX + name: value
        for name, value in attributes.items()
    }
    time = attributes.get("time")
    time_ms = None if time is None else from_iso_time(time, f"{where}.time")
    if time_ms is not None and time_ms < 0:
        time_ms = None  # event times of messages begin in 1970; the property has the time all the same
    return OutboundMessage(payload, attributes.get("partitionkey"), properties, time_ms)


def _canonical(value: object, field: str) -> str:
    """Return the text form of an attribute's value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value in _INT32:
        return str(value)
    if not isinstance(value, str):
        raise BadRequestError(f"{field} is neither text, a boolean nor an integer of 32 bits", field=field)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRequestError(f"{field} has half of a surrogate pair", field=field) from error
    return value


def _from_header(value: str, name: str) -> str:
    """Return the text in a header: once unquoted, then decoded from percent-encoding."""
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the header {name} is not UTF-8 in percent-encoding", field=name) from error
