"""Messages that a producer cut into several entries because they were too large for one."""

from __future__ import annotations

from heliograph.aio.delivery import Delivery

MESSAGES_MAX = 16  # half-received messages; a further one evicts the oldest, which is redelivered later # I15
BYTES_MAX = 256 << 20  # of all their chunks together


class ChunkAssembler:
    """Puts the chunks of a message together; its entries are acknowledged together."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Delivery]] = {}
        self._bytes = 0

    def complete(self, delivery: Delivery) -> bool:
        """Takes a chunk. True when it was the last one: ``delivery`` then stands for the whole message."""
        metadata = delivery.metadata
        parts = self._parts.setdefault(metadata.uuid, [])
        if metadata.chunk_id != len(parts):
            self._forget(metadata.uuid)  # the beginning is missing, or was sent again
            if metadata.chunk_id != 0:
                return False
            parts = self._parts.setdefault(metadata.uuid, [])
        parts.append(delivery)
        self._bytes += delivery.size
        if metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            self._forget(metadata.uuid)
            delivery.payload = memoryview(b"".join(part.payload for part in parts))
            delivery.earlier_chunks = [(part.ledger_id, part.entry_id) for part in parts[:-1]]
            return True
        while len(self._parts) > MESSAGES_MAX or self._bytes > BYTES_MAX:  # I15
            self._forget(next(iter(self._parts)))
        return False

    def clear(self) -> None:
        """Forgets everything half-received."""
        self._parts.clear()
        self._bytes = 0

    def _forget(self, uuid: str) -> None:
        for part in self._parts.pop(uuid, ()):
            self._bytes -= part.size
