"""Messages that a producer cut into several entries because they were too large for one."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.aio.delivery import Delivery

MESSAGES_MAX = 16  # half-received messages; a further one evicts the oldest, which is redelivered later # I15
BYTES_MAX = 256 << 20  # of all their chunks together
ENTRIES_MAX = 100_000  # that one message is found in, repetitions included


@dataclass(slots=True)
class _Half:
    """A message of which some chunks are here.

    Attributes:
        parts: its chunks, from the first on.
        entries: where it was found, repetitions included: they are all acknowledged with it.
    """

    parts: list[Delivery] = field(default_factory=list)
    entries: dict[tuple[int, int], None] = field(default_factory=dict)
    size: int = 0  # bytes


class ChunkAssembler:
    """Puts the chunks of a message together; its entries are acknowledged together.

    A producer that lost its connection sends again what was not confirmed, so chunks may come twice.
    """

    def __init__(self) -> None:
        self._halves: dict[str, _Half] = {}
        self._bytes = 0

    def complete(self, delivery: Delivery) -> bool:
        """Takes a chunk. True when it was the last one: ``delivery`` then stands for the whole message."""
        metadata = delivery.metadata
        half = self._halves.get(metadata.uuid)
        if half is None:
            if metadata.chunk_id != 0:
                return False  # the beginning is missing
            half = self._halves[metadata.uuid] = _Half()
        here = (delivery.ledger_id, delivery.entry_id)
        if metadata.chunk_id == 0 and here not in half.entries:
            self._restart(half)  # and not mix it with what came before, which may be an older producer's
        if metadata.chunk_id > len(half.parts) or len(half.entries) >= ENTRIES_MAX:  # I15
            self._forget(metadata.uuid)  # one in between is missing: it comes again, and the others with it
            return False
        if metadata.chunk_id < len(half.parts):
            half.entries[here] = None
            return False
        half.parts.append(delivery)
        half.size += delivery.size
        self._bytes += delivery.size
        if metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            self._forget(metadata.uuid)
            delivery.payload = memoryview(b"".join(part.payload for part in half.parts))
            delivery.earlier_chunks = list(half.entries)
            return True
        half.entries[here] = None
        self._bound()
        return False

    def clear(self) -> None:
        """Forgets everything half-received."""
        self._halves.clear()
        self._bytes = 0

    def _restart(self, half: _Half) -> None:
        self._bytes -= half.size
        half.size = 0
        half.parts.clear()

    def _bound(self) -> None:
        while len(self._halves) > MESSAGES_MAX or self._bytes > BYTES_MAX:  # I15
            self._forget(next(iter(self._halves)))

    def _forget(self, uuid: str) -> None:
        self._bytes -= self._halves.pop(uuid).size
