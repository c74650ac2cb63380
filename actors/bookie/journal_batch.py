"""The batch in the making: payloads of queued records, copied to where they are written from as soon as they come.

That is when they are still in the processor's cache; later, on the journal's thread, fetching them again would cost
more than anything else that is done with a large entry. Headers, which name file and batch, are filled in at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.bookie.blocks import BLOCK_BYTES, BlockBuffer
from actors.bookie.config import JOURNAL_BATCH_BYTES_MAX
from actors.bookie.journal_format import RECORD_HEADER_BYTES, encode_batch

_BUFFER_BYTES = 1 << 20  # at first; it grows with the largest batch
_BEHIND_BYTES = 2 * BLOCK_BYTES  # room for the END of a batch


class BatchMemory:
    """Payloads of JOURNAL_BATCH_BYTES_MAX together, or one that is larger (I15)."""

    def __init__(self) -> None:
        self._buffer = BlockBuffer(_BUFFER_BYTES)
        self._end = BLOCK_BYTES  # the first block is left free for the header of a file
        self.records = 0

    def gather(self, records: Sequence[Sequence[Any]], first: int) -> None:
        """Take those from ``first`` on, in order, as far as there is room. The payload is the second item of each."""
        memory, end, room = self._buffer.memory, self._end, self._room()
        for index in range(first, len(records)):
            payload = records[index][1]
            start = end + RECORD_HEADER_BYTES
            new_end = start + len(payload)
            if new_end > room:
                if self.records and new_end > JOURNAL_BATCH_BYTES_MAX:
                    break
                self._buffer.reserve(new_end + _BEHIND_BYTES, kept=end)
                memory, room = self._buffer.memory, self._room()
            memory[start:new_end] = payload
            end = new_end
            self.records += 1
        self._end = end

    def finish(
        self, header: bytes, records: Sequence[Sequence[Any]], file_id: int, sequence: int, batch: int
    ) -> tuple[memoryview, int]:
        """The whole batch of the records that were taken, behind ``header``, to be written and let go of; and the
        sequence of the record after it. The memory is free for the next batch.

        Args:
            header: that of a file, or empty.
            sequence: of the first record.
        """
        assert len(records) == self.records, "what was taken is what is written"
        memory, start = self._buffer.memory, BLOCK_BYTES - len(header)
        memory[start:BLOCK_BYTES] = header
        end, next_sequence = encode_batch(memory, BLOCK_BYTES, records, file_id, sequence, batch)
        self.clear()
        return self._buffer.view(end)[start:], next_sequence

    def _room(self) -> int:
        """Up to where payloads are taken without another look."""
        return min(len(self._buffer.memory) - _BEHIND_BYTES, JOURNAL_BATCH_BYTES_MAX)

    def clear(self) -> None:
        """Forget what was taken."""
        self._end = BLOCK_BYTES
        self.records = 0
