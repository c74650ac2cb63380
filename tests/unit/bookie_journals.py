"""Journal bytes for tests, made as the journal makes them."""

from __future__ import annotations

from collections.abc import Sequence

from actors.bookie.journal_batch import BatchMemory
from actors.bookie.journal_format import Kind


def encoded_batch(
    records: Sequence[tuple[Kind, bytes]], file_id: int, sequence: int, batch: int
) -> tuple[bytearray, int]:
    """One batch, and the sequence of the record after it."""
    memory = BatchMemory()
    memory.gather(records, 0)
    data, next_sequence = memory.finish(b"", records, file_id, sequence, batch)
    return bytearray(data), next_sequence
