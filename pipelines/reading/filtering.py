"""Rows that conditions leave: whole entries by their metadata, before they are decompressed, then rows. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.base.errors import ProtocolError
from heliograph.pipelines.planning.conditions import (
    EVENT_TIME,
    IN,
    KEY,
    NOT_NULL,
    PUBLISH_TIME,
    Condition,
    Where,
)
from heliograph.pipelines.reading.columns import schema_of
from heliograph.pipelines.reading.fields import key_of
from heliograph.protocol import entry as topic_entry
from heliograph.protocol.message_id import MessageId

_COMPARE = {
    "==": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_MICROSECONDS = 1000  # in a millisecond
_TIME_MS_MAX = 253_402_300_799_999  # later ones are shown as this one


class RowFilter:
    """Leaves out what cannot match, entry by entry, and then rows.

    Args:
        columns: that come out; those that are compared need not be among them.
    """

    def __init__(self, where: Where, columns: Sequence[str]) -> None:
        self._where = where
        self._columns = tuple(columns)
        self.reads = (*columns, *(name for name in where.columns if name not in columns))
        self._schema = schema_of(self._columns)
        self._ids = where.message_ids()

    def may_have_rows(self, partition: int, ledger_id: int, entry_id: int, section: bytes | memoryview) -> bool:
        """Return whether an entry can have matching rows. An unreadable entry may have them: its reader says so."""
        if self._ids is not None and not any(_is_in(one, partition, ledger_id, entry_id) for one in self._ids):
            return False
        try:
            metadata, _ = topic_entry.split(section)
        except ProtocolError:
            return True
        if metadata.num_chunks_from_msg > 1:
            return True  # its message needs all of them
        published = min(metadata.publish_time, _TIME_MS_MAX) * _MICROSECONDS or None
        if not self._where.may_hold(PUBLISH_TIME, published):
            return False
        if topic_entry.is_batch(metadata):
            return True  # its messages have keys and times of their own
        event = min(metadata.event_time, _TIME_MS_MAX) * _MICROSECONDS or None
        return self._where.may_hold(KEY, key_of(metadata)) and self._where.may_hold(EVENT_TIME, event)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows of a batch that has the columns ``reads``, with the columns that come out."""
        kept = batch.filter(matching(batch, self._where))
        return pa.RecordBatch.from_arrays([kept.column(name) for name in self._columns], schema=self._schema)

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows of batches, and no batch without rows."""
        for batch in batches:
            kept = self.rows(batch)
            if kept.num_rows:
                yield kept


def matching(batch: pa.RecordBatch, where: Where) -> pa.Array:
    return reduce(pc.and_, [_holds(batch.column(one.column), one) for one in where.conditions])


def _holds(column: pa.Array, condition: Condition) -> pa.Array:
    if condition.operator == NOT_NULL:
        return column.is_valid()
    if condition.operator == IN:
        values = pa.array(sorted(condition.value), _plain_type(column))
        return pc.is_in(_plain(column), value_set=values)
    found = _COMPARE[condition.operator](_plain(column), pa.scalar(condition.value, _plain_type(column)))
    return pc.fill_null(found, False)


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _plain_type(column: pa.Array) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(column.type) else column.type


def _is_in(message_id: MessageId, partition: int, ledger_id: int, entry_id: int) -> bool:
    return (message_id.partition, message_id.ledger_id, message_id.entry_id) == (partition, ledger_id, entry_id)
