"""Rows counted without their payloads: the metadata of an entry tells how many messages it has. No I/O.

Bookies send the beginnings of entries, whose checksums they have compared.

A count is that of the rows which ``Rows`` makes of readable entries. Only a task that reads payloads can know an entry
whose payload does not keep what its metadata promises, so where such entries are left out or shown, rows are made.
"""

from __future__ import annotations

from heliograph.actors.ledger.driver import HEAD_BYTES
from heliograph.base.errors import ChecksumError, ProtocolError, UnsupportedError
from heliograph.pipelines.reading.chunks import ChunkJoiner, Earlier, nothing_earlier
from heliograph.protocol import entry as topic_entry

NO_PAYLOAD = memoryview(b"")


def is_cut(section: bytes | memoryview) -> bool:
    """Return whether an entry that was read for its head may go on."""
    return len(section) == HEAD_BYTES


def lacks_metadata(section: bytes | memoryview) -> bool:
    """Return whether an entry has to be read as a whole, because its metadata is longer than its head."""
    if not is_cut(section):
        return False
    try:
        topic_entry.split(section)
    except ProtocolError:
        return True
    return False


class RowCounter:
    """Counts the rows of entries, in their order."""

    def __init__(self) -> None:
        self._chunks = ChunkJoiner()
        self.count = 0

    def add_entry(
        self, topic: str, ledger_id: int, entry_id: int, section: bytes | memoryview, earlier: Earlier = nothing_earlier
    ) -> None:
        """Add the messages of one entry; arguments and errors are those of ``Rows.add_entry``."""
        try:
            self.count += self._rows_of(ledger_id, entry_id, section, earlier)
        except (ProtocolError, ChecksumError, UnsupportedError) as error:
            reason = f"entry {ledger_id}:{entry_id} of {topic} cannot be read: {error}"
            raise type(error)(f"{reason}; on_unreadable='skip' or 'null' goes on") from error

    def _rows_of(self, ledger_id: int, entry_id: int, section: bytes | memoryview, earlier: Earlier) -> int:
        metadata, _ = topic_entry.parse(section, check=not is_cut(section))
        if metadata.HasField("marker_type"):
            return 0
        if metadata.num_chunks_from_msg > 1:
            if metadata.encryption_keys:
                raise UnsupportedError("it is a chunk of an encrypted message")
            return self._chunks.add(ledger_id, entry_id, metadata, NO_PAYLOAD, earlier) is not None
        if not topic_entry.is_batch(metadata):
            return 1
        return max(0, metadata.num_messages_in_batch)
