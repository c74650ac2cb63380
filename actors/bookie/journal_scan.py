"""Reading journal files: which batches are whole, and whether what follows them is a torn tail or damage.

Batch n+1 is only written after batch n was synced. So when batch n cannot be read and a record of a batch above n can,
n was durable once: damage, refuse. When there is none, n was never acknowledged as a whole, and none of it counts.

A file is looked at through a window, so that the memory this takes does not depend on the size of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import crc32c

from actors.bookie.blocks import BLOCK_BYTES
from actors.bookie.config import ENTRY_BYTES_MAX
from actors.bookie.disk import DiskFile
from actors.bookie.journal_format import (
    CHECKSUM_BYTES,
    RECORD,
    RECORD_HEADER_BYTES,
    JournalFileHeader,
    Kind,
    decode_file_header,
)
from actors.errors import JournalCorruptError

WINDOW_BYTES = 1 << 20  # read at once; more only for a record that is larger
PAYLOAD_BYTES_MAX = ENTRY_BYTES_MAX  # a record that claims more is none
_KINDS = {int(kind): kind for kind in Kind}
_new_record = tuple.__new__  # several times as fast as the call of a named tuple, and there are very many


class JournalRecord(NamedTuple):
    """A record that was read; ``offset`` is that of its header in the file."""

    kind: Kind
    offset: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """A complete batch, without its END; ``end`` is the offset behind it."""

    number: int
    offset: int
    end: int
    records: list[JournalRecord]
    next_sequence: int


class Window:
    """Some bytes of a file: ``view`` begins at ``start``. Views that were given out stay good."""

    def __init__(self, read_at: Callable[[int, int], bytes], size: int) -> None:
        self._read_at = read_at
        self.size = size
        self.start = 0
        self.view = memoryview(b"")

    def at(self, offset: int, length: int) -> int:
        """Have ``length`` bytes from ``offset`` in the view, or as many as there are; returns their place in it."""
        place = offset - self.start
        if place < 0 or place + length > len(self.view):
            self.view = memoryview(self._read_at(offset, max(length, WINDOW_BYTES)))
            self.start, place = offset, 0
        return place


def scan_bytes(data: bytes, file_id: int, name: str) -> tuple[JournalFileHeader | None, Iterator[JournalBatch]]:
    """``scan`` of a file's content."""
    return _scan(Window(lambda offset, length: data[offset : offset + length], len(data)), file_id, name)


def scan(file: DiskFile, file_id: int) -> tuple[JournalFileHeader | None, Iterator[JournalBatch]]:
    """Header and complete batches of one file, up to its valid end. The file stays open until the last was taken.

    The header is None when the file holds nothing that was ever durable: made ready and not used yet. Without any batch
    it is one that was torn in its first.

    Raises:
        JournalCorruptError: damage before the end of what was durable, with file and offset; here or, after the batches
            before the damage, from the iterator.
        BookieStorageError: the file cannot be read.
    """
    return _scan(Window(file.read_at, file.size()), file_id, str(file.path))


def _scan(window: Window, file_id: int, name: str) -> tuple[JournalFileHeader | None, Iterator[JournalBatch]]:
    place = window.at(0, BLOCK_BYTES)
    header = decode_file_header(window.view[place : place + BLOCK_BYTES], name)
    if window.size < BLOCK_BYTES or (header is not None and window.size < header.file_bytes):
        # Files are filled before they get their name and never shrink, so no crash leaves this.
        raise JournalCorruptError(f"{name}: damaged at offset {window.size}, where the file was cut off")
    if header is None or header.file_id != file_id:
        _refuse_later_batches(window, file_id, 1, 0, name)
        return None, iter(())
    return header, _batches(window, header, name)


def _batches(window: Window, header: JournalFileHeader, name: str) -> Iterator[JournalBatch]:
    offset, number, sequence = BLOCK_BYTES, 1, header.first_sequence
    while True:
        batch = _read_batch(window, offset, header.file_id, number, sequence, name)
        if batch is None:
            _refuse_later_batches(window, header.file_id, number, offset, name)
            return
        yield batch
        offset, number, sequence = batch.end, number + 1, batch.next_sequence


def _read_batch(
    window: Window, offset: int, file_id: int, number: int, sequence: int, name: str
) -> JournalBatch | None:
    records: list[JournalRecord] = []
    start = offset
    while True:
        found = _read_record(window, offset, file_id)
        if found is None or found[0] != number:
            return None
        _, found_sequence, kind, payload = found
        if found_sequence != sequence:
            raise JournalCorruptError(f"{name}: record {found_sequence} at offset {offset}, expected {sequence}")
        sequence += 1
        if kind is Kind.END:
            return JournalBatch(number, start, offset + RECORD_HEADER_BYTES + len(payload), records, sequence)
        records.append(_new_record(JournalRecord, (kind, offset, payload)))
        offset += RECORD_HEADER_BYTES + len(payload)


def _read_record(window: Window, offset: int, file_id: int) -> tuple[int, int, Kind, memoryview] | None:
    """Batch, sequence, kind and payload of the record at ``offset``; None when none of this file can be read there."""
    view, place = window.view, offset - window.start
    if place < 0 or place + RECORD_HEADER_BYTES > len(view):
        if offset + RECORD_HEADER_BYTES > window.size:
            return None
        place = window.at(offset, RECORD_HEADER_BYTES)
        view = window.view
    checksum, length, record_file_id, sequence, batch, number = RECORD.unpack_from(view, place)
    if record_file_id != file_id or length > PAYLOAD_BYTES_MAX:
        return None
    end = place + RECORD_HEADER_BYTES + length
    if end > len(view):
        if offset + RECORD_HEADER_BYTES + length > window.size:
            return None
        place = window.at(offset, RECORD_HEADER_BYTES + length)
        view, end = window.view, place + RECORD_HEADER_BYTES + length
    if number not in _KINDS or crc32c.crc32c(view[place + CHECKSUM_BYTES : end]) != checksum:
        return None
    return batch, sequence, _KINDS[number], view[place + RECORD_HEADER_BYTES : end]


def _refuse_later_batches(window: Window, file_id: int, number: int, offset: int, name: str) -> None:
    """Raise JournalCorruptError if a batch above ``number``, which cannot be read at ``offset``, was ever written."""
    for later in range(offset + BLOCK_BYTES, window.size, BLOCK_BYTES):
        found = _read_record(window, later, file_id)
        if found is not None and found[0] > number:
            raise JournalCorruptError(
                f"{name}: damaged at offset {offset} (batch {number}), while batch {found[0]} at offset {later} "
                "proves that it was once whole; restore the file, or start the bookie accepting the loss of its "
                "storage so that its ledgers are repaired from other bookies"
            )
