"""Schemas of values: the Avro record of a table's columns, or the topic's own record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
from typing_extensions import override

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.client.schemas.records import AvroSchema, JsonSchema
from heliograph.client.schemas.schema import DecodeValue, Schema
from heliograph.pipelines.reading.shapes.avro import direct_fields
from heliograph.pipelines.writing.conversion import DEPTH_MAX, Form
from heliograph.pipelines.writing.fields import is_bytes, is_text, row_error
from heliograph.protocol.schema import SchemaInfo

ROW_NAME = "Row"  # of the record of a table's columns
KINDS = ("avro", "json", "registry")
WrittenSchema = Literal["avro", "json", "registry"] | Schema | None  # as callers name it

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EncodedSchema(Schema):
    """Values that are encoded before a producer gets them, which only registers their schema."""

    told: SchemaInfo

    @property
    @override
    def info(self) -> SchemaInfo:
        return self.told

    @override
    def encode(self, value: Any) -> bytes:
        assert isinstance(value, bytes), "values are encoded by the rows' schema"
        return value

    @override
    def decoder(self, written: SchemaInfo | None) -> DecodeValue:
        raise AssertionError("tables are read by ranges, not by this schema")


class RecordSchema:
    """The schema of the rows' values. It can be pickled.

    Args:
        schema: an AvroSchema, or a JsonSchema with a definition.

    Raises:
        UnsupportedError: it is another one.
    """

    def __init__(self, schema: Schema) -> None:
        if not isinstance(schema, AvroSchema | JsonSchema) or schema.info is None:
            raise UnsupportedError(
                f"rows are not written as {schema!r}",
                field="schema",
                limit="AvroSchema, or JsonSchema with a definition",
            )
        self._schema = schema
        self.info: SchemaInfo = schema.info
        self.form = Form.AVRO if isinstance(schema, AvroSchema) else Form.JSON

    @property
    def encoded(self) -> EncodedSchema:
        """Return the schema of a producer that gets values from ``encode``."""
        return EncodedSchema(self.info)

    def encode(self, row: dict[str, Any]) -> bytes:
        """Return the bytes of a row.

        Raises:
            BadRequestError: it does not fit; names the field of the record.
        """
        if self.form is Form.JSON:
            row = {name: cell for name, cell in row.items() if cell is not None}  # as Pulsar's own JSON schemas do
        try:
            return self._schema.encode(row)
        except BadRequestError as error:
            name = self._misfit(row)
            if name is None:
                raise
            raise BadRequestError(f"the field {name!r} does not fit: {error}", field=name) from error

    def check(self, names: Sequence[str]) -> None:
        """Do nothing if a table's columns are the fields of the record; those with a default may be missing.

        Raises:
            BadRequestError: they are not.
        """
        for name in names:
            if name not in self._fields:
                raise BadRequestError(
                    f"the topic's record has no field {name!r}", field=name, limit=", ".join(self._fields)
                )
        for name, one in self._fields.items():
            if name not in names and "default" not in one and not _is_nullable(one["type"]):
                raise BadRequestError(
                    f"the topic's record has a field {name!r}, which no column holds",
                    field=name,
                    limit=", ".join(names),
                )

    @cached_property
    def _fields(self) -> dict[str, Any]:
        return {one["name"]: one for one in json.loads(self.info.data)["fields"]}

    def typed(self, name: str, column: pa.Array, first_row: int) -> pa.Array:
        """Return a column with the type that the field has: encoders would write what readers cannot read.

        Args:
            first_row: the number of its first row in the task, for the error.

        Raises:
            BadRequestError: a cell does not fit; names column, row and type.
        """
        return typed_column(name, column, self._kinds.get(name, column.type), first_row)

    @cached_property
    def _kinds(self) -> dict[str, pa.DataType]:
        # A union of several types takes whatever fits one of them.
        return dict(direct_fields(self.info.data))

    def _misfit(self, row: Mapping[str, Any]) -> str | None:
        """Return the first field that cannot be encoded alone."""
        for name, one in self._fields.items():
            try:
                alone = {"type": "record", "name": ROW_NAME, "fields": [one]}
                schema = AvroSchema(alone) if self.form is Form.AVRO else self._schema
                schema.encode({name: row[name]} if name in row else {})
            except BadRequestError:
                return name
        return None


def typed_column(name: str, column: pa.Array, kind: pa.DataType, first_row: int) -> pa.Array:
    """Return a column with the type that its field has.

    Args:
        first_row: the number of its first row in the task, for the error.

    Raises:
        BadRequestError: a cell does not fit; names column, row and type.
    """
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowNotImplementedError:
        raise BadRequestError(
            f"column {name!r} has the type {column.type}, and the topic's record needs {kind}", field=name
        ) from None
    except pa.ArrowInvalid as error:
        for place in range(len(column)):
            try:
                column[place : place + 1].cast(kind)
            except pa.ArrowInvalid as reason:
                raise row_error(f"column {name!r}", first_row + place, str(reason), name, str(kind)) from None
        raise BadRequestError(f"column {name!r}: {error}", field=name, limit=str(kind)) from error


def record_of_columns(kind: str, fields: Iterable[pa.Field]) -> RecordSchema:
    """Return the schema of a table's columns.

    Args:
        kind: ``avro`` or ``json``.

    Raises:
        BadRequestError: a column has no form in an Avro record; names it.
    """
    definition = _record(ROW_NAME, fields, 0)
    return RecordSchema(AvroSchema(definition) if kind == "avro" else JsonSchema(definition))


def _is_nullable(kind: Any) -> bool:
    return kind == "null" or (isinstance(kind, list) and "null" in kind)


def _record(name: str, fields: Iterable[pa.Field], depth: int) -> dict[str, Any]:
    found = []
    for one in fields:
        if not _NAME.fullmatch(one.name):
            raise BadRequestError(
                f"column {one.name!r} has no name of an Avro field: rename it", field=one.name, limit=_NAME.pattern
            )
        kind = _type(one.type, f"{name}_{one.name}", one.name, depth + 1)
        # Every column may be null, and is null in messages that were written before it was there.
        found.append({"name": one.name, "type": kind if kind == "null" else ["null", kind], "default": None})
    return {"type": "record", "name": name, "fields": found}


def _type(kind: pa.DataType, name: str, column: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise BadRequestError(f"column {column!r}: types in types are too deep", field=column, limit=f"{DEPTH_MAX}")
    for is_kind, form in _PLAIN:
        if is_kind(kind):
            return form
    if pa.types.is_timestamp(kind):
        local, unit = "" if kind.tz else "local-", "millis" if kind.unit == "ms" else "micros"
        return {"type": "long", "logicalType": f"{local}timestamp-{unit}"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, name, column, depth + 1)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, f"{name}_item", column, depth + 1)]}
    if pa.types.is_map(kind) and is_text(kind.key_type):
        return {"type": "map", "values": ["null", _type(kind.item_type, f"{name}_value", column, depth + 1)]}
    if pa.types.is_struct(kind):
        return _record(name, kind, depth + 1)
    raise BadRequestError(f"column {column!r} has the type {kind}, which an Avro record has not: cast it", field=column)


_PLAIN: Sequence[tuple[Any, Any]] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (lambda kind: pa.types.is_integer(kind) and (kind.bit_width < 32 or pa.types.is_int32(kind)), "int"),
    (lambda kind: pa.types.is_int64(kind) or pa.types.is_uint32(kind), "long"),
    (lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind), "float"),
    (pa.types.is_float64, "double"),
    (is_text, "string"),
    (is_bytes, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (pa.types.is_time32, {"type": "int", "logicalType": "time-millis"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)
