"""Rows of Arrow in groups that are sent together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from heliograph.base.errors import BadRequestError, HeliographError, MessageTooLargeError
from heliograph.client.aio.producer.arguments import HEAD_BYTES_MAX
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.fields import (
    DELIVER_AFTER,
    DELIVER_AT,
    EVENT_TIME,
    FIELDS,
    KEY,
    ORDERING_KEY,
    PROPERTIES,
    TOPIC,
)
from heliograph.pipelines.writing.in_flight import ROW_BYTES
from heliograph.pipelines.writing.values import RowValues
from heliograph.protocol.batch import full_head

GROUP_ROWS_MAX = 1000  # rows that are sent together (I15)
GROUP_BYTES_MAX = 1 << 20  # of Arrow, but for a single larger row (I15)

ARGUMENTS = {
    KEY: "keys",
    PROPERTIES: "properties",
    EVENT_TIME: "event_times_ms",
    ORDERING_KEY: "ordering_keys",
    DELIVER_AT: "deliver_times_ms",
}


@dataclass(frozen=True)
class RowGroup:
    """Some rows.

    Args:
        rows: the numbers of the rows in their task.
        values: their values.
        others: other fields, by the names of ``FIELDS``.
        size: bytes of all rows, about.
    """

    rows: Sequence[int]
    values: list[bytes | str | None]
    others: dict[str, list[Any]]
    size: int

    @property
    def arguments(self) -> dict[str, list[Any]]:
        return {ARGUMENTS[name]: cells for name, cells in self.others.items()}

    def chosen(self, positions: Sequence[int]) -> RowGroup:
        if len(positions) == len(self.rows):
            return self
        share = self.size * len(positions) // max(1, len(self.rows))
        others = {name: [cells[position] for position in positions] for name, cells in self.others.items()}
        rows = [self.rows[position] for position in positions]
        return RowGroup(rows, [self.values[position] for position in positions], others, share)

    def named(self, error: HeliographError) -> HeliographError:
        """Return an error of a producer with the row that is too large, if that is its reason."""
        if not isinstance(error, MessageTooLargeError):
            return error
        heads = [len(self._head(position)) for position in range(len(self.rows))]
        sizes = heads if max(heads) > HEAD_BYTES_MAX else [len(value or b"") for value in self.values]
        row = self.rows[sizes.index(max(sizes))]
        return MessageTooLargeError(f"row {row} of its task: {error}", field=error.field, limit=error.limit)

    def _head(self, position: int) -> bytes:
        key, properties, ordering = (self.others.get(name) for name in (KEY, PROPERTIES, ORDERING_KEY))
        return full_head(
            0,
            key[position] if key else None,
            properties[position] if properties else None,
            None,
            ordering[position] if ordering else None,
        )


def row_groups(
    batches: Iterable[pa.RecordBatch | pa.Table], columns: WrittenColumns, values: RowValues
) -> Iterator[tuple[RowGroup, list[str | None] | None]]:
    """Yield the rows in groups, each with the topics that its rows name, if a column names them.

    Raises:
        BadRequestError: there is no such column, or a row is not acceptable; names column, row and limit.
    """
    row = 0
    for table in _collected(batches, columns):
        count = max(1, min(GROUP_ROWS_MAX, GROUP_BYTES_MAX * table.num_rows // max(1, table.nbytes)))
        for first in range(0, table.num_rows, count):
            piece = table.slice(first, count)
            yield _row_group(piece, columns, values, row)
            row += piece.num_rows


def _collected(batches: Iterable[pa.RecordBatch | pa.Table], columns: WrittenColumns) -> Iterator[pa.Table]:
    """Yield the columns that are written, small batches put together."""
    few: list[pa.RecordBatch | pa.Table] = []  # of one schema
    needed: list[str] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue  # an empty block of Ray Data has no columns
        if not few or few[0].schema != batch.schema:
            columns.check(batch.schema.names, "table")
            if few:
                yield _together(few, needed)
            few, needed, rows, size = [], columns.needed(batch.schema.names), 0, 0
        few.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS_MAX or size >= GROUP_BYTES_MAX:
            yield _together(few, needed)
            few, rows, size = [], 0, 0
    if few:
        yield _together(few, needed)


def _together(few: Sequence[pa.RecordBatch | pa.Table], needed: Sequence[str]) -> pa.Table:
    if isinstance(few[0], pa.RecordBatch):
        return pa.Table.from_batches(few).select(needed)
    return pa.concat_tables(few).select(needed)


def _row_group(
    piece: pa.Table, columns: WrittenColumns, values: RowValues, row: int
) -> tuple[RowGroup, list[str | None] | None]:
    others = {name: FIELDS[name].cells(piece.column(column), column, row) for name, column in columns.others.items()}
    topics = others.pop(TOPIC, None)
    if DELIVER_AFTER in others:
        others[DELIVER_AT] = others.pop(DELIVER_AFTER)
    rows = range(row, row + piece.num_rows)
    found = values.of(piece, row)
    size = sum(len(value or b"") for value in found) + piece.nbytes + ROW_BYTES * len(rows)
    return RowGroup(rows, found, others, size), topics


def missing_topic(row: int, column: str) -> BadRequestError:
    return BadRequestError(
        f"column {column!r}, row {row} of its task: it is null, and no topic is given for such rows", field=column
    )
