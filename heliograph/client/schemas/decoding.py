"""Values out of the bytes of messages, by the schemas of the registry. No I/O.

A message is decoded with the version it was written with, and shown with the fields of another one: fields that are new
are null or have their default, and fields that were removed are gone.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from heliograph.base.errors import HeliographError, ProtocolError
from heliograph.base.guard.json_text import parse_json
from heliograph.base.version import extra_required
from heliograph.client.schemas.avro_bounds import value_check
from heliograph.protocol.schema import SchemaInfo, SchemaType

Decode = Callable[[bytes, bytes | None], Any]  # of the value and the key of a message
PlainDecoder = Callable[[SchemaInfo, SchemaInfo], Callable[[bytes], Any]]  # by what was written, and what is shown
_T = SchemaType
_NUMBERS = {
    _T.INT8: ">b",
    _T.INT16: ">h",
    _T.INT32: ">i",
    _T.INT64: ">q",
    _T.FLOAT: ">f",
    _T.DOUBLE: ">d",
    _T.DATE: ">q",
    _T.TIMESTAMP: ">q",
}


def decoder_of(written: SchemaInfo, shown: SchemaInfo, plain: PlainDecoder | None = None) -> Decode:
    """Return what decodes values that were written with one schema into the form of another.

    The returned function raises ProtocolError for bytes that the schema does not fit.

    Args:
        plain: decodes what is no pair of key and value; None: ``plain_decoder``.

    Raises:
        ProtocolError: The schemas are of different types.
        ResourceError: A package that decodes the values is not installed; names it.
    """
    plain = plain or plain_decoder
    if shown.type is _T.KEY_VALUE and written.type is _T.KEY_VALUE:
        return _key_value(written, shown, plain)
    decode = checked(plain(written, shown))
    return lambda value, key: decode(value)


def _key_value(written: SchemaInfo, shown: SchemaInfo, plain: PlainDecoder) -> Decode:
    key_of, value_of = (
        checked(plain(*pair)) for pair in zip(key_value_schemas(written), key_value_schemas(shown), strict=True)
    )
    if is_key_separate(written):
        return lambda value, key: {"key": None if key is None else key_of(key), "value": value_of(value)}

    def split(value: bytes, key: bytes | None) -> Any:
        try:
            (size,) = struct.unpack_from(">i", value)
            end = 4 + max(0, size)
            (length,) = struct.unpack_from(">i", value, end)
        except struct.error as error:
            raise ProtocolError(f"a pair of key and value is cut short: {error}") from error
        return {
            "key": None if size < 0 else key_of(value[4:end]),
            "value": None if length < 0 else value_of(value[end + 4 : end + 4 + length]),
        }

    return split


def checked(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return ``decode``, with ProtocolError for whatever it raises."""

    def checking(value: bytes) -> Any:
        try:
            return decode(value)
        except HeliographError:
            raise
        except Exception as error:  # the decoders raise whatever foreign bytes lead them to
            raise ProtocolError(f"{type(error).__name__}: {error}") from error

    return checking


def require_same_type(written: SchemaInfo, shown: SchemaInfo) -> None:
    """Raise ProtocolError if values of the one schema cannot be shown as those of the other."""
    if written.type is not shown.type:
        raise ProtocolError(
            f"the message has a schema of type {written.type.name}, and {shown.type.name} is expected", field="schema"
        )


def plain_decoder(written: SchemaInfo, shown: SchemaInfo) -> Callable[[bytes], Any]:
    """Return what decodes values that are no pairs of key and value; it raises whatever foreign bytes lead it to.

    Raises:
        ProtocolError: The schemas are of different types.
        ResourceError: A package that decodes the values is not installed; names it.
    """
    kind = written.type
    require_same_type(written, shown)
    if kind is _T.AVRO:
        with extra_required():
            import fastavro

        read = partial(parse_json, what="the schema", field="schema", is_stored=True)
        writer, reader = (fastavro.parse_schema(read(schema.data)) for schema in (written, shown))
        check = value_check(written.data)
        if check is None:
            return lambda value: fastavro.schemaless_reader(io.BytesIO(value), writer, reader)

        def checking(value: bytes) -> Any:
            check(value)
            return fastavro.schemaless_reader(io.BytesIO(value), writer, reader)

        return checking
    if kind is _T.JSON:
        return json.loads
    if kind is _T.STRING:
        return bytes.decode
    if kind is _T.BOOLEAN:
        return lambda value: bool(value[0])
    if kind in _NUMBERS:
        number = struct.Struct(_NUMBERS[kind])
        return lambda value: number.unpack(value)[0]
    return bytes


def tagged(schema: Any, tags: Mapping[str, str]) -> Any:
    """Return a definition of Avro whose plain types named in ``tags`` have that logical type."""
    if isinstance(schema, list):
        return [tagged(one, tags) for one in schema]
    if isinstance(schema, str):
        return {"type": schema, "logicalType": tags[schema]} if schema in tags else schema
    kind = schema["type"]
    if isinstance(kind, str) and kind in tags:
        return {"logicalType": tags[kind], **schema}
    made = dict(schema)
    if kind in ("record", "error"):
        made["fields"] = [{**one, "type": tagged(one["type"], tags)} for one in schema["fields"]]
    else:
        made["type"] = tagged(kind, tags) if isinstance(kind, dict | list) else kind
        made |= {part: tagged(schema[part], tags) for part in ("items", "values") if part in schema}
    return made


def key_value_schemas(schema: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    data, properties = schema.data, schema.properties
    (size,) = struct.unpack_from(">i", data)
    key, rest = data[4 : 4 + max(0, size)], data[4 + max(0, size) :]
    (size,) = struct.unpack_from(">i", rest)
    value = rest[4 : 4 + max(0, size)]

    def part(name: str, definition: bytes) -> SchemaInfo:
        kind = SchemaType.named(properties.get(f"{name}.schema.type", "BYTES"))
        own = parse_json(properties.get(f"{name}.schema.properties") or "{}", "the schema's properties", "properties")
        return SchemaInfo(kind, definition, properties.get(f"{name}.schema.name", name), own)

    return part("key", key), part("value", value)


def is_key_separate(schema: SchemaInfo) -> bool:
    """Return whether the key of a KEY_VALUE schema stands in the message's key instead of its value."""
    return schema.properties.get("kv.encoding.type", "INLINE") == "SEPARATED"
