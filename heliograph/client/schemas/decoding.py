"""Values out of the bytes of messages, by the schemas of the registry. No I/O.

A message is decoded with the version it was written with, and shown with the fields of another one: fields that are new
are null or have their default, and fields that were removed are gone.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.message_factory import GetMessageClass

from heliograph.base.errors import HeliographError, ProtocolError
from heliograph.base.version import extra_required
from heliograph.protocol.schema import SchemaInfo, SchemaType

Decode = Callable[[bytes, bytes | None], Any]  # of the value and the key of a message
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


def decoder_of(written: SchemaInfo, shown: SchemaInfo) -> Decode:
    """Return what decodes values that were written with one schema into the form of another.

    What it returns raises ProtocolError for bytes that the schema does not fit.

    Raises:
        ProtocolError: The schemas are of different types.
        ResourceError: A package that decodes the values is not installed; names it.
    """
    if shown.type is _T.KEY_VALUE and written.type is _T.KEY_VALUE:
        return _key_value(written, shown)
    decode = checked(_plain_decoder(written, shown))
    return lambda value, key: decode(value)


def _key_value(written: SchemaInfo, shown: SchemaInfo) -> Decode:
    key_of, value_of = (
        checked(_plain_decoder(*pair))
        for pair in zip(key_value_schemas(written), key_value_schemas(shown), strict=True)
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


def _plain_decoder(written: SchemaInfo, shown: SchemaInfo) -> Callable[[bytes], Any]:
    kind = written.type
    require_same_type(written, shown)
    if kind is _T.AVRO:
        with extra_required():
            import fastavro

        writer = fastavro.parse_schema(json.loads(written.data))
        reader = fastavro.parse_schema(json.loads(shown.data))
        return lambda value: fastavro.schemaless_reader(io.BytesIO(value), writer, reader)
    if kind is _T.JSON:
        return json.loads
    if kind is _T.PROTOBUF_NATIVE:
        message = GetMessageClass(root_message(shown))
        return lambda value: _fields(message.FromString(value))
    if kind is _T.STRING:
        return bytes.decode
    if kind is _T.BOOLEAN:
        return lambda value: bool(value[0])
    if kind in _NUMBERS:
        number = struct.Struct(_NUMBERS[kind])
        return lambda value: number.unpack(value)[0]
    return bytes


def _fields(message: ProtobufMessage) -> dict[str, Any]:
    described: list[Any] = list(message.DESCRIPTOR.fields)
    return {one.name: _field(message, one) for one in described}


def _field(message: ProtobufMessage, one: FieldDescriptor) -> Any:
    value = getattr(message, one.name)
    if one.message_type is not None and one.message_type.GetOptions().map_entry:
        of_values = one.message_type.fields_by_name["value"]
        return [(key, _scalar(value[key], of_values)) for key in value]
    if one.is_repeated:
        return [_scalar(item, one) for item in value]
    if one.has_presence and not message.HasField(one.name):
        return None
    return _scalar(value, one)


def _scalar(value: Any, one: FieldDescriptor) -> Any:
    if one.message_type is not None:
        return _fields(value)
    if one.enum_type is not None:
        named = one.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return Decimal(value) if one.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else value


def key_value_schemas(schema: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    """Return the schemas of the key and of the value of a KEY_VALUE schema."""
    data, properties = schema.data, schema.properties
    (size,) = struct.unpack_from(">i", data)
    key, rest = data[4 : 4 + max(0, size)], data[4 + max(0, size) :]
    (size,) = struct.unpack_from(">i", rest)
    value = rest[4 : 4 + max(0, size)]

    def part(name: str, definition: bytes) -> SchemaInfo:
        kind = SchemaType.named(properties.get(f"{name}.schema.type", "BYTES"))
        own = json.loads(properties.get(f"{name}.schema.properties") or "{}")
        return SchemaInfo(kind, definition, properties.get(f"{name}.schema.name", name), own)

    return part("key", key), part("value", value)


def is_key_separate(schema: SchemaInfo) -> bool:
    """Return whether the key of a KEY_VALUE schema stands in the message's key instead of its value."""
    return schema.properties.get("kv.encoding.type", "INLINE") == "SEPARATED"


def root_message(schema: SchemaInfo) -> Descriptor:
    """Return the message that a PROTOBUF_NATIVE schema describes."""
    fields = json.loads(schema.data)
    pool = DescriptorPool()
    files = FileDescriptorSet.FromString(base64.b64decode(fields["fileDescriptorSet"]))
    waiting = list(files.file)
    while waiting:
        ready = [file for file in waiting if not {other.name for other in waiting} & set(file.dependency)]
        if not ready:
            raise ValueError("its files import each other")
        for file in ready:
            pool.Add(file)
            waiting.remove(file)
    return pool.FindMessageTypeByName(fields["rootMessageTypeName"])
