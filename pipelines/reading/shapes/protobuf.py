"""Messages of Protobuf as structs. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToJson

from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH, Shape, ShapeLimits

_F = FieldDescriptor
_SCALARS: Mapping[int, pa.DataType] = {
    _F.CPPTYPE_INT32: pa.int32(),
    _F.CPPTYPE_INT64: pa.int64(),
    _F.CPPTYPE_UINT32: pa.int64(),
    _F.CPPTYPE_UINT64: pa.decimal128(20, 0),
    _F.CPPTYPE_DOUBLE: pa.float64(),
    _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_BOOL: pa.bool_(),
    _F.CPPTYPE_STRING: pa.string(),
}

_Path = tuple[str, ...]


def message_shape(message: Descriptor, recursion_depth: int = RECURSION_DEPTH, *, has_defaults: bool = False) -> Shape:
    """Return the struct of a message. A field that is not there is null where Protobuf can tell that it is not.

    Args:
        has_defaults: such a field has its default, if the message names one.

    Raises:
        UnsupportedError: it has too many columns, or messages in messages are too deep.
    """
    return _Messages(ShapeLimits(recursion_depth), has_defaults=has_defaults).struct(message, ())


class _Messages:
    def __init__(self, limits: ShapeLimits, *, has_defaults: bool) -> None:
        self._limits = limits
        self._has_defaults = has_defaults

    def struct(self, message: Descriptor, path: _Path) -> Shape:
        name = message.full_name
        if self._limits.is_reached(name, path):
            return Shape(pa.string(), _json)
        described: list[FieldDescriptor] = list(message.fields)
        self._limits.count(len(described), len(path))
        inner = (*path, name)
        kinds, cells = [], []
        for one in described:
            shape = self._field(one, inner)
            kinds.append(pa.field(one.name, shape.kind))
            cells.append((one.name, self._cell(one, shape)))
        return Shape(pa.struct(kinds), lambda value: {name: cell(value) for name, cell in cells})

    def _cell(self, one: FieldDescriptor, shape: Shape) -> Callable[[Any], Any]:
        """Return the function that makes the cell of a field out of the message."""
        name, convert = one.name, shape.convert
        is_told = one.has_presence and not one.is_repeated
        if not is_told or (self._has_defaults and one.has_default_value):
            return lambda message: convert(getattr(message, name))
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None

    def _field(self, one: FieldDescriptor, path: _Path) -> Shape:
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            key, value = (self._scalar(part, path) for part in one.message_type.fields)
            kind = pa.map_(key.kind, value.kind)
            return Shape(kind, lambda cell: [(key.convert(name), value.convert(cell[name])) for name in cell])
        scalar = self._scalar(one, path)
        if not one.is_repeated:
            return scalar
        return Shape(pa.list_(scalar.kind), lambda cell: [scalar.convert(item) for item in cell])

    def _scalar(self, one: FieldDescriptor, path: _Path) -> Shape:
        if one.message_type is not None:
            return self.struct(one.message_type, path)
        if one.enum_type is not None:
            names = {number: value.name for number, value in one.enum_type.values_by_number.items()}
            return Shape(pa.string(), lambda number: names.get(number) or str(number))
        if one.type == _F.TYPE_BYTES:
            return Shape(pa.binary(), _same)
        return Shape(_SCALARS[one.cpp_type], Decimal if one.cpp_type == _F.CPPTYPE_UINT64 else _same)


def _same(value: Any) -> Any:
    return value


def _json(message: Any) -> str:
    return MessageToJson(message, preserving_proto_field_name=True, indent=None)
