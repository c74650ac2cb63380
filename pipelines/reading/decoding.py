"""Values of messages into typed columns, by the schemas of the registry. No I/O.

A message is decoded with the version it was written with, and shown with the fields of the newest: fields that are new
are null or have their default, and fields that were removed are gone.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from heliograph.base.errors import HeliographError, ProtocolError
from heliograph.pipelines.reading.columns import ERROR, KEY, SCHEMA, SCHEMA_VERSION, VALUE, OnUnreadable
from heliograph.pipelines.reading.registry import (
    TopicSchemas,
    arrow_type,
    is_key_separate,
    key_value_schemas,
    root_message,
)
from heliograph.protocol.schema import SchemaInfo, SchemaType

BAD_VALUE = "__badValue"  # the bytes of a value that its schema does not fit

_T = SchemaType
_Decode = Callable[[bytes, bytes | None], Any]  # of the value and the key of a message
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


class ValueDecoder:
    """Decodes the column ``value`` of record batches.

    Args:
        schemas: of the topic.
        columns: the other columns wanted, without ``value``.
        on_unreadable: what becomes of a row whose value its schema does not fit: ``fail`` raises, ``skip`` leaves it
            out, ``null`` has nulls, the reason in ``__error`` and the bytes in ``__badValue``.

    Attributes:
        schema: of the batches that come out: the fields of a record, or ``value``; then the other columns.
        reads: the columns that batches need to have.
        unreadable: rows whose value does not fit.
    """

    def __init__(self, schemas: TopicSchemas, columns: Sequence[str], on_unreadable: OnUnreadable = "fail") -> None:
        self._schemas = schemas
        self._type = arrow_type(schemas.newest)
        self._beside = [name for name in columns if name not in (VALUE, ERROR)]
        self._on_unreadable = on_unreadable
        self._decoders: dict[int | None, _Decode] = {}
        own = list(self._type) if pa.types.is_struct(self._type) else [pa.field(VALUE, self._type)]
        bad = [pa.field(ERROR, pa.string()), pa.field(BAD_VALUE, pa.binary())] if on_unreadable == "null" else []
        self.schema = pa.schema([*own, *(SCHEMA.field(name) for name in self._beside), *bad])
        reads = [VALUE, KEY, SCHEMA_VERSION, *([ERROR] if bad else []), *self._beside]
        self.reads = tuple(dict.fromkeys(reads))
        self.unreadable = 0

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with typed columns.

        Raises:
            ProtocolError: a value does not fit its schema, and ``on_unreadable`` is ``fail``.
        """
        for batch in batches:
            yield self._batch(batch)

    def _batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name).to_pylist() for name in (VALUE, KEY, SCHEMA_VERSION)]
        found: list[Any] = []
        errors: list[str | None] = batch.column(ERROR).to_pylist() if ERROR in self.reads else [None] * batch.num_rows
        for row, (value, key, version) in enumerate(zip(*columns, strict=True)):
            try:
                found.append(None if value is None else self._decoder(version)(value, key))
            except HeliographError as error:
                found.append(None)
                errors[row] = str(error)
        typed = self._typed(found, errors)
        bad = [error is not None and value is not None for error, value in zip(errors, columns[0], strict=True)]
        self.unreadable += sum(bad)
        if self._on_unreadable == "fail" and any(bad):
            raise ProtocolError(
                f"a value does not fit its schema: {errors[bad.index(True)]}; on_unreadable='skip' or 'null' goes on",
                field="schema",
            )
        arrays = list(typed.flatten()) if pa.types.is_struct(self._type) else [typed]
        arrays += [batch.column(name) for name in self._beside]
        if self._on_unreadable == "null":
            values = [value if is_bad else None for value, is_bad in zip(columns[0], bad, strict=True)]
            arrays += [pa.array(errors, pa.string()), pa.array(values, pa.binary())]
        made = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return made.filter(pa.array([not one for one in bad])) if self._on_unreadable == "skip" and any(bad) else made

    def _typed(self, values: list[Any], errors: list[str | None]) -> pa.Array:
        """Return the values as an Arrow array. Those that have other types than the schema's become null."""
        try:
            return pa.array(values, self._type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
            return pa.concat_arrays([self._typed_alone(row, value, errors) for row, value in enumerate(values)])

    def _typed_alone(self, row: int, value: Any, errors: list[str | None]) -> pa.Array:
        try:
            if pa.types.is_struct(self._type) and not isinstance(value, dict | None):
                raise TypeError(f"{type(value).__name__} instead of a record")
            return pa.array([value], self._type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError) as error:
            errors[row] = str(error)
            return pa.nulls(1, self._type)

    def _decoder(self, version: int | None) -> _Decode:
        found = self._decoders.get(version)
        if found is None:
            written = self._schemas.written_with(version)
            found = self._decoders[version] = _decoder_of(written, self._schemas.newest)
        return found


def _decoder_of(written: SchemaInfo, shown: SchemaInfo) -> _Decode:
    if shown.type is _T.KEY_VALUE and written.type is _T.KEY_VALUE:
        return _key_value(written, shown)
    decode = _checked(_plain_decoder(written, shown))
    return lambda value, key: decode(value)


def _key_value(written: SchemaInfo, shown: SchemaInfo) -> _Decode:
    key_of, value_of = (
        _checked(_plain_decoder(*pair))
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


def _checked(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def checked(value: bytes) -> Any:
        try:
            return decode(value)
        except HeliographError:
            raise
        except Exception as error:  # the decoders raise whatever foreign bytes lead them to
            raise ProtocolError(f"{type(error).__name__}: {error}") from error

    return checked


def _plain_decoder(written: SchemaInfo, shown: SchemaInfo) -> Callable[[bytes], Any]:
    kind = written.type
    if kind is not shown.type:
        raise ProtocolError(f"the message has a schema of type {kind.name}, the newest is {shown.type.name}")
    if kind is _T.AVRO:
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


def _fields(message: Message) -> dict[str, Any]:
    described: list[Any] = list(message.DESCRIPTOR.fields)
    return {one.name: _field(message, one) for one in described}


def _field(message: Message, one: FieldDescriptor) -> Any:
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
