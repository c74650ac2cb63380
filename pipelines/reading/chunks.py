"""Messages in chunks, joined for tables. No I/O.

A producer splits a message that is too large for one entry. The row of such a message stands where its last chunk is,
whichever task reads that; its earlier chunks may stand before the range of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from heliograph.base.errors import UnsupportedError
from heliograph.protocol import entry as topic_entry
from heliograph.protocol.pulsar_pb2 import MessageMetadata

PARTIAL_MAX = 16  # incomplete messages; a further one drops the oldest, which is then looked for backwards  # I15
PARTIAL_BYTES_MAX = 256 << 20  # of all their chunks  # I15

# The entries before one, newest first, each after its ledger id and entry id.
Earlier = Callable[[int], Iterable[tuple[tuple[int, int], bytes | memoryview]]]


def nothing_earlier(entry_id: int) -> Iterable[tuple[tuple[int, int], bytes | memoryview]]:
    """Return no entries: all that may be looked at was added."""
    return ()


@dataclass(slots=True)
class _Partial:
    first_entry: tuple[int, int]  # ledger id and entry id of its first chunk
    parts: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """A whole message: its payload as the producer packed it, and the position of its first chunk."""

    payload: bytes
    first_entry: tuple[int, int]


class ChunkJoiner:
    """Joins the chunks of one task, in the order of its entries. A chunk may come twice; the first counts."""

    def __init__(self) -> None:
        self._partial: dict[str, _Partial] = {}  # by the uuid of the message
        self._bytes = 0

    def add(
        self, ledger_id: int, entry_id: int, metadata: MessageMetadata, payload: memoryview, earlier: Earlier
    ) -> Joined | None:
        """Add a chunk. Return the whole message if this was its last one.

        Args:
            earlier: returns the entries before one, for a message that began before the range.

        Raises:
            UnsupportedError: the last chunk came, and an earlier one is nowhere before it.
        """
        uuid, chunk = metadata.uuid, metadata.chunk_id
        is_last = chunk == metadata.num_chunks_from_msg - 1
        if chunk == 0:
            self._drop(uuid)
            self._partial[uuid] = _Partial((ledger_id, entry_id))
        partial = self._partial.get(uuid)
        if partial is None or chunk > len(partial.parts):
            if not is_last:
                return None  # the last one looks for what is missing
            self._drop(uuid)
            partial = self._found_before(entry_id, metadata, earlier)
        if chunk < len(partial.parts):
            return None  # sent twice
        partial.parts.append(bytes(payload))
        partial.size += len(payload)
        if is_last:
            self._drop(uuid, counted=partial.size - len(payload))
            return Joined(b"".join(partial.parts), partial.first_entry)
        self._bytes += len(payload)
        while len(self._partial) > PARTIAL_MAX or self._bytes > PARTIAL_BYTES_MAX:  # I15
            self._drop(next(iter(self._partial)))
        return None

    def _drop(self, uuid: str, counted: int | None = None) -> None:
        partial = self._partial.pop(uuid, None)
        if partial is not None:
            self._bytes -= partial.size if counted is None else counted
        assert self._bytes >= 0, "no more bytes are freed than were held"

    def _found_before(self, entry_id: int, last: MessageMetadata, earlier: Earlier) -> _Partial:
        parts: dict[int, bytes] = {}
        size, first = 0, (0, 0)
        for at, section in earlier(entry_id):
            metadata, payload = topic_entry.split(section)
            if metadata.uuid != last.uuid or metadata.num_chunks_from_msg < 2:
                continue
            parts[metadata.chunk_id] = bytes(payload)  # of a chunk that was sent twice, the first is met last
            size += len(payload)
            if metadata.chunk_id == 0 or size > PARTIAL_BYTES_MAX:  # I15
                first = at
                break
        if sorted(parts) != list(range(last.chunk_id)):
            raise UnsupportedError("the earlier chunks of its message are gone, or too far before it")
        return _Partial(first, [parts[index] for index in range(last.chunk_id)], size)
