"""Arguments of one message, checked and encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from heliograph.base.clock import Duration, Moment, moment_ms, seconds_of, wall_ms
from heliograph.base.errors import BadRequestError, MessageTooLargeError
from heliograph.client.schemas.schema import Schema
from heliograph.protocol.batch import full_head, heads_of, key_text
from heliograph.protocol.frame import FRAME_SLACK_BYTES

# Key, properties and event time of one message: they must fit what a frame has on top of its payload. # I15
HEAD_BYTES_MAX = 7 << 10
DELIVER_AFTER_SECONDS_MAX = 100 * 365 * 86_400

assert HEAD_BYTES_MAX < FRAME_SLACK_BYTES, "a message with the longest head fits its frame"

_Key = TypeVar("_Key", str, bytes, str | bytes)


def encoded(
    schema: Schema, value: Any, properties: Mapping[str, str] | None
) -> tuple[bytes | None, Mapping[str, str] | None]:
    """Return the payload and the properties of a value with a schema; None stays None."""
    return None if value is None else schema.encode(value), {**schema.properties, **(properties or {})} or None


def all_encoded(
    schema: Schema, values: Sequence[Any], properties: Sequence[Mapping[str, str] | None] | None
) -> tuple[list[bytes | None], Sequence[Mapping[str, str] | None] | None]:
    """Return payloads and properties of many values with a schema; None stays None."""
    encoded = [None if value is None else schema.encode(value) for value in values]
    if schema.properties and (properties is None or len(properties) == len(values)):
        properties = [{**schema.properties, **(own or {})} for own in properties or [None] * len(values)]
    return encoded, properties


def all_heads(
    payloads: Sequence[bytes],
    keys: Sequence[str | bytes | None] | None,
    properties: Sequence[Mapping[str, str] | None] | None,
    event_times_ms: Sequence[Moment | None] | None,
    ordering_keys: Sequence[bytes | None] | None,
    nulls: Sequence[bool] | None,
) -> list[bytes]:
    """Return the metadata in front of each payload."""
    for key in keys or ():
        if key is not None:
            checked_key(key)
    has_bytes = any(isinstance(key, bytes) for key in keys or ())
    if properties is None and event_times_ms is None and ordering_keys is None and nulls is None and not has_bytes:
        return heads_of(payloads, keys)  # type: ignore[arg-type]  # all keys are text
    nothing: list[None] = [None] * len(payloads)
    columns = zip(
        map(len, payloads),
        keys or nothing,
        properties or nothing,
        event_times_ms or nothing,
        ordering_keys or nothing,
        nulls or [False] * len(payloads),
        strict=True,
    )
    return [checked_head(*column) for column in columns]


def checked_head(
    size: int,
    key: str | bytes | None,
    properties: Mapping[str, str] | None,
    event_time_ms: Moment | None,
    ordering_key: bytes | None = None,
    is_null: bool = False,
) -> bytes:
    """Return the metadata in front of one payload; raise BadRequestError if a part of it is not acceptable."""
    if properties is not None and not isinstance(properties, Mapping):
        raise BadRequestError(
            f"properties are a mapping of names to values, not {type(properties).__name__}", field="properties"
        )
    for name, value in (properties or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequestError(f"property {name!r} is not text", field="properties")
        encodable("properties", name + value)
    if ordering_key is not None and not isinstance(ordering_key, bytes):
        raise BadRequestError(
            f"an ordering key must be bytes, not {type(ordering_key).__name__}", field="ordering_keys"
        )
    time_ms = None if event_time_ms is None else moment_ms(event_time_ms, "event_time_ms")
    return full_head(size, key if key is None else checked_key(key), properties, time_ms, ordering_key, is_null)


def key_texts(keys: Sequence[str | bytes | None]) -> list[str | None]:
    """Return keys as text, those of bytes in base64."""
    return [key if key is None else key_text(key) for key in keys]


def deliver_at_ms_of(deliver_after: Duration | None, deliver_at: Moment | None) -> int:
    """Return the earliest delivery time in ms since the epoch."""
    if deliver_after is not None and deliver_at is not None:
        raise BadRequestError("give deliver_after or deliver_at, not both", field="deliver_at")
    if deliver_at is not None:
        return moment_ms(deliver_at, "deliver_at")
    seconds = seconds_of(deliver_after, "deliver_after")
    if not 0 <= seconds <= DELIVER_AFTER_SECONDS_MAX:
        raise BadRequestError(
            f"deliver_after is {deliver_after!r}", field="deliver_after", limit=f"0 to {DELIVER_AFTER_SECONDS_MAX} s"
        )
    return wall_ms() + round(seconds * 1_000)


def check_head_size(head: bytes) -> None:
    """Raise MessageTooLargeError for a head that does not fit its frame."""
    if len(head) > HEAD_BYTES_MAX:
        raise MessageTooLargeError(
            f"the key and properties of a message have {len(head)} bytes",
            field="properties",
            limit=f"{HEAD_BYTES_MAX} bytes",
        )


def checked_text(key: str | bytes) -> str:
    """Return a key that has to be text; raise BadRequestError for another one."""
    if not isinstance(key, str):
        raise BadRequestError(f"a key must be text, not {type(key).__name__}", field="key")
    return encodable("key", key)


def checked_key(key: _Key) -> _Key:
    """Return a key of text or bytes; raise BadRequestError for another one."""
    if not isinstance(key, str | bytes):
        raise BadRequestError(f"a key must be text or bytes, not {type(key).__name__}", field="key")
    return encodable("key", key) if isinstance(key, str) else key


def encodable(field: str, text: str) -> str:
    """Return a text; raise BadRequestError if UTF-8 cannot express it, as half of a surrogate pair."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(f"{field}: {error}", field=field) from error
    return text


def columns_of(
    values: Sequence[Any],
    keys: Sequence[str | bytes | None] | None,
    properties: Sequence[Mapping[str, str] | None] | None,
    event_times_ms: Sequence[Moment | None] | None,
) -> Iterator[tuple[Any, str | bytes | None, Mapping[str, str] | None, Moment | None]]:
    """Return value, key, properties and event time of each message."""
    nothing: list[None] = [None] * len(values)
    return zip(values, keys or nothing, properties or nothing, event_times_ms or nothing, strict=True)


def checked_values(values: Iterable[Any], **columns: Sequence[Any] | None) -> Sequence[Any]:
    """Return the values of a list of messages.

    Raises:
        BadRequestError: They are one value, or a column has another number of items.
    """
    if not isinstance(values, list | tuple):
        if isinstance(values, str | bytes | bytearray | memoryview | Mapping) or not isinstance(values, Iterable):
            raise BadRequestError(f"values are a list, not {type(values).__name__}", field="values")
        values = list(values)
    for name, column in columns.items():
        if column is not None and len(column) != len(values):
            raise BadRequestError(f"{name} has {len(column)} items for {len(values)} values", field=name)
    return values


def to_bytes(value: object) -> bytes:
    """Return bytes or text as bytes, and no bytes for None; raise BadRequestError for anything else."""
    if value is None:
        return b""
    if isinstance(value, str):
        return encodable("value", value).encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise BadRequestError(f"a value must be bytes or text, not {type(value).__name__}", field="value")
