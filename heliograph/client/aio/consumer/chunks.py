"""Messages that a producer split into chunks because they were too large for one entry. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.client.aio.consumer.delivery import ReceivedEntry

MESSAGES_MAX = 16  # incomplete messages; a further one evicts the oldest, which is redelivered later # I15
BYTES_MAX = 256 << 20  # of all their chunks together
ENTRIES_MAX = 100_000  # of one message, repetitions included


@dataclass(slots=True)
class _PartialMessage:
    """A message of which some chunks were received.

    Attributes:
        parts: Its chunks, from the first on.
        entries: Positions of its chunks, repetitions included; all are acknowledged with the message.
    """

    parts: list[ReceivedEntry] = field(default_factory=list)
    entries: dict[tuple[int, int], None] = field(default_factory=dict)
    size: int = 0  # bytes


class ChunkAssembler:
    """Assembles messages from their chunks.

    A chunk may come twice, because a producer that lost its connection sends everything unconfirmed again.
    """

    def __init__(self) -> None:
        self._partial: dict[str, _PartialMessage] = {}  # by the uuid of the message
        self._bytes = 0  # of all chunks held

    def complete(self, delivery: ReceivedEntry) -> bool:
        """Add a chunk. Return True if it was the last one: ``delivery`` then stands for the whole message."""
        metadata = delivery.metadata
        partial = self._partial.get(metadata.uuid)
        if partial is None:
            if metadata.chunk_id != 0:
                return False  # its first chunk is missing
            partial = self._partial[metadata.uuid] = _PartialMessage()
        position = (delivery.ledger_id, delivery.entry_id)
        if metadata.chunk_id == 0 and position not in partial.entries:
            self._restart(partial)  # the earlier chunks may be of an older producer
        if metadata.chunk_id > len(partial.parts) or len(partial.entries) >= ENTRIES_MAX:  # I15
            self._forget(metadata.uuid)  # a chunk in between is missing: it is redelivered, and the others with it
            return False
        if metadata.chunk_id < len(partial.parts):
            partial.entries[position] = None
            return False
        partial.parts.append(delivery)
        partial.size += delivery.size
        self._bytes += delivery.size
        if metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            self._forget(metadata.uuid)
            delivery.payload = memoryview(b"".join(part.payload for part in partial.parts))
            delivery.earlier_chunks = list(partial.entries)
            return True
        partial.entries[position] = None
        self._evict_oldest()
        return False

    def clear(self) -> None:
        """Forget every incomplete message."""
        self._partial.clear()
        self._bytes = 0

    def _restart(self, partial: _PartialMessage) -> None:
        self._bytes -= partial.size
        partial.size = 0
        partial.parts.clear()

    def _evict_oldest(self) -> None:
        while len(self._partial) > MESSAGES_MAX or self._bytes > BYTES_MAX:  # I15
            self._forget(next(iter(self._partial)))

    def _forget(self, uuid: str) -> None:
        self._bytes -= self._partial.pop(uuid).size
        assert self._bytes >= 0, "no more bytes are freed than were held"
