"""Rows as messages of Protobuf, by the schema that a topic has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import Parse
from google.protobuf.message_factory import GetMessageClass

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.reading.shapes.descriptors import native_message
from heliograph.pipelines.reading.shapes.protobuf import message_shape
from heliograph.pipelines.writing.conversion import Form
from heliograph.pipelines.writing.records import EncodedSchema, typed_column
from heliograph.protocol.schema import SchemaInfo

Fill = Callable[[Any, Any], None]  # a message by a cell


class MessageSchema:
    """The schema of rows that become messages. It can be pickled.

    Args:
        info: the topic's schema.
        described: the same as PROTOBUF_NATIVE, with all files that define the message.

    Raises:
        ValueError, KeyError, TypeError: it is malformed.
    """

    form = Form.AVRO  # maps are dicts, and all else is as Arrow has it

    def __init__(self, info: SchemaInfo, described: SchemaInfo) -> None:
        self.info = info
        self._described = described
        self._message = native_message(described)

    def __reduce__(self) -> tuple[Any, ...]:
        return MessageSchema, (self.info, self._described)

    @property
    def encoded(self) -> EncodedSchema:
        """Return the schema of a producer that gets values from ``encode``."""
        return EncodedSchema(self.info)

    def encode(self, row: dict[str, Any]) -> bytes:
        """Return the bytes of a row.

        Raises:
            BadRequestError: it does not fit; names the field of the message.
        """
        message = self._make()
        try:
            self._fill(message, row)
            packed: bytes = message.SerializeToString()
        except BadRequestError:
            raise
        except Exception as error:  # protobuf raises whatever a foreign value leads it to
            raise BadRequestError(f"the row does not fit {self._message.full_name}: {error}", field="value") from error
        return packed

    @cached_property
    def _make(self) -> Callable[[], Any]:
        return GetMessageClass(self._message)

    @cached_property
    def _fill(self) -> Fill:
        return _filling(self._message, ())

    def check(self, names: Sequence[str]) -> None:
        """Do nothing if a table's columns are fields of the message, and none is missing that it needs.

        Raises:
            BadRequestError: they are not.
        """
        fields: Mapping[str, FieldDescriptor] = self._message.fields_by_name
        for name in names:
            if name not in fields:
                raise BadRequestError(f"the topic's message has no field {name!r}", field=name, limit=", ".join(fields))
        for name, one in fields.items():
            if one.is_required and name not in names:
                raise BadRequestError(
                    f"the topic's message needs a field {name!r}, which no column holds",
                    field=name,
                    limit=", ".join(names),
                )

    def typed(self, name: str, column: pa.Array, first_row: int) -> pa.Array:
        """Return a column with the type that the field has.

        Args:
            first_row: the number of its first row in the task, for the error.

        Raises:
            BadRequestError: a cell does not fit; names column, row and type.
        """
        return typed_column(name, column, self._kinds[name], first_row)

    @cached_property
    def _kinds(self) -> dict[str, pa.DataType]:
        return {one.name: one.type for one in message_shape(self._message).kind}


def _filling(message: Descriptor, path: tuple[str, ...]) -> Fill:
    """Return the function that fills a message from a struct, or from JSON if it contains itself."""
    name = message.full_name
    if name in path:
        return lambda made, text: Parse(text, made)
    described: list[FieldDescriptor] = list(message.fields)
    parts = {one.name: _part(one, (*path, name)) for one in described}

    def fill(made: Any, row: Mapping[str, Any]) -> None:
        made.SetInParent()
        for field, cell in row.items():
            if cell is not None:
                try:
                    parts[field](made, cell)
                except BadRequestError:
                    raise
                except Exception as error:
                    raise BadRequestError(f"the field {field!r} does not fit: {error}", field=field) from error

    return fill


def _part(one: FieldDescriptor, path: tuple[str, ...]) -> Fill:
    name = one.name
    if one.message_type is not None and one.message_type.GetOptions().map_entry:
        return _map_part(name, one.message_type.fields_by_name["value"], path)
    if one.message_type is not None:
        fill = _filling(one.message_type, path)
        if not one.is_repeated:
            return lambda made, cell: fill(getattr(made, name), cell)

        def add(made: Any, cell: list[Any]) -> None:
            for item in cell:
                fill(getattr(made, name).add(), item)

        return add
    convert = _scalar(one)
    if one.is_repeated:
        return lambda made, cell: getattr(made, name).extend([convert(item) for item in cell])
    return lambda made, cell: setattr(made, name, convert(cell))


def _map_part(name: str, value: FieldDescriptor, path: tuple[str, ...]) -> Fill:
    if value.message_type is None:
        convert = _scalar(value)
        return lambda made, cell: getattr(made, name).update({key: convert(item) for key, item in cell.items()})
    fill = _filling(value.message_type, path)

    def put(made: Any, cell: Mapping[Any, Any]) -> None:
        for key, item in cell.items():
            fill(getattr(made, name)[key], item)

    return put


def _scalar(one: FieldDescriptor) -> Callable[[Any], Any]:
    if one.enum_type is not None:
        numbers = {named: value.number for named, value in one.enum_type.values_by_name.items()}
        return lambda cell: numbers[cell] if cell in numbers else int(cell)
    return int if one.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else lambda cell: cell
