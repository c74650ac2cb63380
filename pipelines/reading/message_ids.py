"""The column of message ids, made for all messages of an entry at once. No I/O."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from heliograph.pipelines.reading.batch.messages import Matrix
from heliograph.protocol.batch import varint
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.pulsar_pb2 import MessageIdData

_BATCH_INDEX, _BATCH_SIZE = b"\x20", b"\x30"  # tags of MessageIdData
_ENDS_ROWS_MAX = 16_384  # of a batch whose ends are kept for the next one of its size  # I15


class SingleIds:
    """Serializes ids of messages that are not in batches, as ``MessageId.to_bytes`` does, in one object for all."""

    def __init__(self) -> None:
        self._data = MessageIdData()
        self._ledger_id = self._partition = -2  # of ``_data``: of no entry so far

    def bytes_of(self, entry: MessageId, first_chunk: tuple[int, int] | None = None) -> bytes:
        """Return a serialized id.

        Args:
            first_chunk: of a message in chunks: the position (ledger id, entry id) of its first one.
        """
        if first_chunk is not None:
            whole = entry.to_data()
            whole.first_chunk_message_id.ledger_id, whole.first_chunk_message_id.entry_id = first_chunk
            return whole.SerializeToString()
        if entry.ledger_id != self._ledger_id or entry.partition != self._partition:
            self._data = entry.to_data()
            self._ledger_id, self._partition = entry.ledger_id, entry.partition
        self._data.entry_id = entry.entry_id
        return self._data.SerializeToString()


def batch_ids(entry: MessageId, indexes: Sequence[int], batch_size: int) -> Iterator[Matrix | list[bytes]]:
    """Yield the serialized ids of the ``indexes`` of a batch, in parts of one size each, or as a list.

    The common prefix is serialized once; each id equals ``MessageId.to_bytes``.
    """
    start = entry.to_bytes()
    if indexes != range(batch_size) or batch_size > _ENDS_ROWS_MAX:
        end = _BATCH_SIZE + varint(batch_size)
        yield [start + _BATCH_INDEX + varint(index) + end for index in indexes]
        return
    prefix = np.frombuffer(start, np.uint8)
    for ends in _ends(batch_size):
        ids = np.empty((len(ends), len(prefix) + ends.shape[1]), np.uint8)
        ids[:, : len(prefix)] = prefix
        ids[:, len(prefix) :] = ends
        yield ids


@functools.lru_cache(maxsize=64)  # I15
def _ends(batch_size: int) -> tuple[Matrix, ...]:
    """Return what follows the position in the ids of a whole batch, one matrix for each size that the index takes."""
    end = _BATCH_SIZE + varint(batch_size)
    by_size: dict[int, list[bytes]] = {}
    for index in range(batch_size):
        number = varint(index)
        by_size.setdefault(len(number), []).append(_BATCH_INDEX + number + end)
    return tuple(np.frombuffer(b"".join(ends), np.uint8).reshape(len(ends), -1) for ends in by_size.values())
