"""The latest row of each key. No I/O.

A partition holds all messages of a key in the order in which they were published, so a key's latest row of a partition
is the topic's, and no shuffle is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heliograph.pipelines.reading.columns import ERROR, KEY, VALUE

# Held before the first fold; then twice what the last one left.  # I15
FOLD_ROWS_MIN = 65_536
FOLD_BYTES_MIN = 64 << 20

_ROW, _LAST = "row", "row_max"


class LatestRows:
    """Keeps the latest row of each key of one partition, in publish order.

    A message without a value deletes its key, and one without a key is in no state. A row that tells an error stays:
    nobody knows its key.

    Args:
        columns: that come out.

    Attributes:
        reads: the columns of the batches that ``add`` takes.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self.reads = (*columns, *(name for name in (KEY, VALUE, ERROR) if name not in columns))
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._fold_at = FOLD_ROWS_MIN, FOLD_BYTES_MIN

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows that were published after all others."""
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        rows, size = self._fold_at
        if self._rows >= rows or self._bytes >= size:
            self._fold()
            self._fold_at = max(FOLD_ROWS_MIN, 2 * self._rows), max(FOLD_BYTES_MIN, 2 * self._bytes)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the state."""
        self._fold()
        for batch in self._held:
            yield batch.select(self._columns)

    def _fold(self) -> None:
        if not self._held:
            return
        held = pa.Table.from_batches([batch.select([KEY]) for batch in self._held])
        numbered = held.append_column(_ROW, pa.array(np.arange(self._rows)))
        found = numbered.group_by(KEY, use_threads=False).aggregate([(_ROW, "max")])
        is_kept = np.zeros(self._rows, bool)
        is_kept[found.filter(found.column(KEY).is_valid()).column(_LAST).to_numpy()] = True
        first, kept = 0, []
        for batch in self._held:
            mask = pa.array(is_kept[first : first + batch.num_rows])
            first += batch.num_rows
            has_value = pc.fill_null(pc.greater(pc.binary_length(batch.column(VALUE)), 0), False)
            left = batch.filter(pc.or_(pc.and_(mask, has_value), batch.column(ERROR).is_valid()))
            kept += [left] if left.num_rows else []
        self._held, self._rows = kept, sum(batch.num_rows for batch in kept)
        self._bytes = sum(batch.nbytes for batch in kept)
