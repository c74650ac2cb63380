"""The fields of a message as columns of a table: their names in every interface, the types they take, their checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError
from heliograph.client.aio.producer.arguments import DELIVER_AFTER_SECONDS_MAX
from heliograph.pipelines.reading import columns as reading
from heliograph.protocol.topic_name import TopicName

VALUE, KEY, PROPERTIES, EVENT_TIME, ORDERING_KEY = "value", "key", "properties", "event_time", "ordering_key"
DELIVER_AT, DELIVER_AFTER, TOPIC = "deliver_at", "deliver_after", "topic_column"
TIME_MS_MAX = (1 << 63) - 1

Cells = list[Any]


@dataclass(frozen=True)
class CellPlace:
    """Where cells come from, for errors.

    Args:
        column: its name in the table.
        first_row: the number of its first row in the task.
        field: the field of the message.
    """

    column: str
    first_row: int
    field: str

    def refused(self, position: int, reason: str, limit: str) -> BadRequestError:
        return row_error(f"column {self.column!r}", self.first_row + position, reason, self.column, limit)

    def wrong_type(self, kind: pa.DataType, takes: str) -> BadRequestError:
        """Return the error of a column whose type the field does not take."""
        told = f"column {self.column!r} has the type {kind}, which is none for {self.field}"
        return BadRequestError(told, field=self.column, limit=takes)


@dataclass(frozen=True)
class MessageField:
    """One field.

    Args:
        name: the argument that names its column, in Python.
        option: the option that does so, of ``format("heliograph")``.
        usual: the column that reading gives it in.
        read: what makes Python objects of a column.
    """

    name: str
    option: str
    usual: str
    read: Callable[[pa.Array, CellPlace], Cells]

    def cells(self, column: pa.Array | pa.ChunkedArray, name: str, first_row: int) -> Cells:
        """Return the cells of a column.

        Args:
            name: of the column in the table.
            first_row: the number of its first row, for the error.

        Raises:
            BadRequestError: a cell, or the type of the column, is not acceptable; names column, row and limit.
        """
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return self.read(array, CellPlace(name, first_row, self.name))


def row_error(what: str, row: int, reason: str, field: str, limit: str | None) -> BadRequestError:
    """Return the error of one row. Rows of a task are counted from 0."""
    return BadRequestError(f"{what}, row {row} of its task: {reason}", field=field, limit=limit)


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _text_or_bytes(array: pa.Array, place: CellPlace) -> Cells:
    if not (is_text(array.type) or is_bytes(array.type) or pa.types.is_null(array.type)):
        raise place.wrong_type(array.type, "text or bytes")
    found: Cells = array.to_pylist()
    return found


def _ordering_keys(array: pa.Array, place: CellPlace) -> Cells:
    return [key.encode() if isinstance(key, str) else key for key in _text_or_bytes(array, place)]


def _properties(array: pa.Array, place: CellPlace) -> Cells:
    if pa.types.is_struct(array.type):  # Ray Data makes structs of dicts
        rows = [row and {name: text for name, text in row.items() if text is not None} for row in array.to_pylist()]
    elif pa.types.is_map(array.type):
        rows = [None if pairs is None else dict(pairs) for pairs in array.to_pylist()]
    elif pa.types.is_null(array.type):
        return [None] * len(array)
    else:
        raise place.wrong_type(array.type, "a map of text to text")
    for position, row in enumerate(rows):
        for name, text in (row or {}).items():
            if type(name) is not str or type(text) is not str:
                raise place.refused(position, f"the property {name!r} is {text!r}", "text")
    return rows


def _milliseconds(array: pa.Array, place: CellPlace) -> Cells:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False)
    elif not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise place.wrong_type(array.type, "a timestamp, or ms since the epoch")
    if pa.types.is_uint64(array.type) and (pc.max(array).as_py() or 0) > TIME_MS_MAX:
        _refuse_above(array.to_pylist(), TIME_MS_MAX, "ms since the epoch", place)
    array = array.cast(pa.int64())
    if (pc.min(array).as_py() or 0) < 0:
        _refuse_above(array.to_pylist(), TIME_MS_MAX, "ms since the epoch", place)
    found: Cells = array.to_pylist()
    return found


def _refuse_above(cells: Sequence[Any], limit: float, unit: str, place: CellPlace) -> None:
    for position, cell in enumerate(cells):
        if cell is not None and not 0 <= cell <= limit:
            raise place.refused(position, f"{cell} {unit}", f"0 to {limit} {unit}")


def _times_after_now(array: pa.Array, place: CellPlace) -> Cells:
    now_ms = wall_ms()
    if pa.types.is_duration(array.type):
        seconds: Cells = [None if one is None else one / 1000 for one in _durations_ms(array)]
    elif pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
        seconds = array.to_pylist()
    elif pa.types.is_null(array.type):
        return [None] * len(array)
    else:
        raise place.wrong_type(array.type, "a number of seconds, or a duration")
    _refuse_above(seconds, DELIVER_AFTER_SECONDS_MAX, "s", place)
    return [None if one is None else now_ms + round(one * 1000) for one in seconds]


def _durations_ms(array: pa.Array) -> Cells:
    found: Cells = array.cast(pa.duration("ms"), safe=False).cast(pa.int64()).to_pylist()
    return found


def _topics(array: pa.Array, place: CellPlace) -> Cells:
    if not (is_text(array.type) or pa.types.is_null(array.type)):
        raise place.wrong_type(array.type, "text")
    names: dict[str, str] = {}
    found: Cells = []
    for position, name in enumerate(array.to_pylist()):
        if name is not None and name not in names:
            try:
                names[name] = str(TopicName.parse(name))
            except BadRequestError as error:
                raise place.refused(position, str(error), error.limit or "the name of a topic") from None
        found.append(None if name is None else names[name])
    return found


FIELDS = {
    one.name: one
    for one in (
        MessageField(VALUE, "value", reading.VALUE, _text_or_bytes),
        MessageField(KEY, "key", reading.KEY, _text_or_bytes),
        MessageField(PROPERTIES, "properties", reading.PROPERTIES, _properties),
        MessageField(EVENT_TIME, "eventTime", reading.EVENT_TIME, _milliseconds),
        MessageField(ORDERING_KEY, "orderingKey", reading.ORDERING_KEY, _ordering_keys),
        MessageField(DELIVER_AT, "deliverAt", reading.DELIVER_AT, _milliseconds),
        MessageField(DELIVER_AFTER, "deliverAfter", "", _times_after_now),
        MessageField(TOPIC, "topicColumn", "", _topics),
    )
}
