"""The next batch of a journal, into which large payloads are copied as they arrive, while the last batch is synced.

A payload that was checked a moment ago is in the cache of the core that copies it, so the copy costs half of what it
costs later, and the journal's thread has less to do between two syncs. The headers of the records are written when the
batch is taken, because only then is it known to which file it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from heliograph.actors.bookie.config import JOURNAL_BATCH_BYTES_MAX
from heliograph.actors.bookie.disk.blocks import BlockBuffer
from heliograph.actors.bookie.journal.format import RECORD_HEADER_BYTES, encode_batch

PLACED_BYTES_MAX = 1 << 20  # copied in one call (I15): the event loop does other things in between
_BUFFER_BYTES = 1 << 20  # initial size of the buffer, which grows with the largest batch


class BatchDraft:
    """The memory of one batch.

    Attributes:
        records: how many of the queue's first records have their payloads here.
    """

    def __init__(self) -> None:
        self._buffer = BlockBuffer(_BUFFER_BYTES)
        self.records = 0
        self._bytes = 0  # of their payloads
        self._end = 0  # of the last payload

    def clear(self) -> None:
        """Forget the payloads. The memory stays."""
        self.records, self._bytes, self._end = 0, 0, 0

    def place(self, queue: Sequence[Sequence[Any]]) -> None:
        """Copy payloads of the queue that are not here yet, in its order. The payload is the second item of a record.

        A call copies about ``PLACED_BYTES_MAX``, and the calls together one batch. The rest is left to ``encode``.
        Until then records are only added to the queue, at its end.
        """
        most = min(JOURNAL_BATCH_BYTES_MAX, self._bytes + PLACED_BYTES_MAX)
        for record in islice(queue, self.records, None):
            if self._bytes >= most:
                return
            payload = record[1]
            start = self._end + RECORD_HEADER_BYTES
            end = start + len(payload)
            self._buffer.reserve(end, kept=self._end)
            self._buffer.memory[start:end] = payload
            self.records, self._bytes, self._end = self.records + 1, self._bytes + len(payload), end

    def encode(
        self, records: Sequence[Sequence[Any]], size: int, tag: bytes, sequence: int, batch: int
    ) -> tuple[memoryview, int]:
        """Encode a batch of ``size`` bytes, which begins with the records whose payloads are here. Then none is here.

        Args:
            tag: of the file.
            sequence: sequence of the first record.

        Returns:
            The bytes to write, whose memory the next use of the draft changes, and the sequence of the next record.
        """
        assert self.records <= len(records), "a batch takes all that was placed for it"
        buffer = self._buffer
        if size > len(buffer.whole):
            buffer.reserve(size, kept=self._end)
        end, next_sequence = encode_batch(buffer.memory, 0, records, tag, sequence, batch, self.records)
        if self.records:
            self.clear()
        return buffer.whole[:end], next_sequence
