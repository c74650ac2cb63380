"""Cells of Arrow as the Python objects that encoders take. No I/O."""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from math import isfinite
from typing import Any

import pyarrow as pa

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.writing.fields import Cells, is_bytes

DEPTH_MAX = 32  # of types in types (I15)

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WITHOUT_NUMBER = {float("inf"): "Infinity", float("-inf"): "-Infinity"}
_MICROSECOND = timedelta(microseconds=1)


class Form(enum.Enum):
    """The conversion of cells.

    AVRO: what fastavro takes. JSON: numbers for times, as an Avro definition describes them to readers of JSON. TEXT:
    JSON that no schema describes, with times in ISO 8601, bytes in base64, decimals and NaN as text, as Spark reads
    them.
    """

    AVRO = "avro"
    JSON = "json"
    TEXT = "text"


def cells_of(array: pa.Array, name: str, form: Form) -> Cells:
    """Return the cells of a column.

    Raises:
        BadRequestError: the form has nothing for the type of the column.
    """
    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        array = array.cast(pa.timestamp("us", tz=array.type.tz), safe=False)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    found: Cells = array.to_pylist()
    convert = _converter(array.type, form, name, 0)
    return found if convert is None else [None if cell is None else convert(cell) for cell in found]


def _converter(kind: pa.DataType, form: Form, name: str, depth: int) -> Convert | None:
    """Return the converter of cells that are not null; None: they stay unchanged."""
    if depth > DEPTH_MAX:
        raise BadRequestError(f"column {name!r}: types in types are too deep", field=name, limit=f"{DEPTH_MAX}")
    if pa.types.is_map(kind):
        return _map_converter(kind, form, name, depth)
    if pa.types.is_struct(kind):
        return _struct_converter(kind, form, name, depth)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = _converter(kind.value_type, form, name, depth + 1)
        return None if item is None else lambda cell: [None if one is None else item(one) for one in cell]
    if form is Form.AVRO:
        return None
    return _number_of(kind, name) if form is Form.JSON else _text_of(kind)


def _map_converter(kind: pa.DataType, form: Form, name: str, depth: int) -> Convert:
    value = _converter(kind.item_type, form, name, depth + 1)
    if value is None:
        return dict
    return lambda cell: {key: None if one is None else value(one) for key, one in cell}


def _struct_converter(kind: pa.DataType, form: Form, name: str, depth: int) -> Convert | None:
    found = {one.name: _converter(one.type, form, f"{name}.{one.name}", depth + 1) for one in kind}
    needed = {key: convert for key, convert in found.items() if convert is not None}
    if form is Form.AVRO:
        if not needed:
            return None
        return lambda cell: {
            key: one if one is None or key not in needed else needed[key](one) for key, one in cell.items()
        }
    return lambda cell: {
        key: needed[key](one) if key in needed else one for key, one in cell.items() if one is not None
    }


def _number_of(kind: pa.DataType, name: str) -> Convert | None:
    if pa.types.is_timestamp(kind):
        step = timedelta(milliseconds=1) if kind.unit == "ms" else _MICROSECOND
        return lambda cell: ((cell if cell.tzinfo else cell.replace(tzinfo=UTC)) - _EPOCH) // step
    if pa.types.is_date(kind):
        return lambda cell: (cell - date(1970, 1, 1)).days
    if pa.types.is_time(kind):
        step = timedelta(milliseconds=1) if pa.types.is_time32(kind) else _MICROSECOND
        return lambda cell: (datetime.combine(date.min, cell) - datetime.combine(date.min, time.min)) // step
    if is_bytes(kind) or pa.types.is_decimal(kind):
        raise BadRequestError(
            f"column {name!r} has the type {kind}, which JSON does not hold: cast it to text, or write Avro", field=name
        )
    return None


def _text_of(kind: pa.DataType) -> Convert | None:
    if pa.types.is_temporal(kind):
        return lambda cell: cell.isoformat() if hasattr(cell, "isoformat") else str(cell)
    if is_bytes(kind):
        return lambda cell: base64.b64encode(cell).decode()
    if pa.types.is_floating(kind):
        return lambda cell: cell if isfinite(cell) else _WITHOUT_NUMBER.get(cell, "NaN")
    return str if pa.types.is_decimal(kind) else None
