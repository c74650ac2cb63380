"""Reading journal files: which batches are complete, and whether a torn tail or damage follows them.

Batch n+1 is written only after batch n was synced. If batch n cannot be read and a record of a later batch can, batch n
was durable once: the file is damaged and is refused. If no later record is found, batch n was never acknowledged as a
whole, and none of it counts.

Old content of a recycled file follows the valid end, and clients sent it. Records of the file carry its tag,
which is in its header and in each of its records (I19). A file of version 2 has its header before it has its name.

A file is read through a window, so the memory in use does not depend on the size of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import crc32c

from heliograph.actors.bookie.config import ENTRY_BYTES_MAX
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.disk.disk import DiskFile
from heliograph.actors.bookie.journal.format import (
    CHECKSUM_BYTES,
    RECORD,
    RECORD_HEADER_BYTES,
    TAG_BYTES,
    JournalFileHeader,
    Kind,
    decode_file_header,
)
from heliograph.actors.errors import JournalCorruptError

WINDOW_BYTES = 1 << 20  # read at once; a larger record is read as a whole
PAYLOAD_BYTES_MAX = ENTRY_BYTES_MAX  # a longer record is not one of ours
_KINDS = {int(kind): kind for kind in Kind}
_new_record = tuple.__new__  # several times as fast as calling the named tuple; a replay makes millions


class JournalRecord(NamedTuple):
    """A record of a file; ``offset`` is the place of its header."""

    kind: Kind
    offset: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """A complete batch without its END record; ``end`` is the offset after it."""

    number: int
    offset: int
    end: int
    records: list[JournalRecord]
    next_sequence: int


class ScanWindow:
    """A part of a file: ``view`` begins at offset ``start``. Views that were given out stay valid."""

    def __init__(self, read_at: Callable[[int, int], bytes], size: int) -> None:
        self._read_at = read_at
        self.size = size
        self.start = 0
        self.view = memoryview(b"")

    def at(self, offset: int, length: int) -> int:
        """Load ``length`` bytes from ``offset`` into the view, fewer at the file's end; return their place in it."""
        place = offset - self.start
        if place < 0 or place + length > len(self.view):
            self.view = memoryview(self._read_at(offset, max(length, WINDOW_BYTES)))
            self.start, place = offset, 0
        return place


def scan_bytes(
    data: bytes, file_id: int, name: str, *, has_header: bool = False
) -> tuple[JournalFileHeader | None, Iterator[JournalBatch]]:
    """Scan the content of a file as ``scan`` does."""
    window = ScanWindow(lambda offset, length: data[offset : offset + length], len(data))
    return _scan(window, file_id, name, has_header=has_header)


def scan(
    file: DiskFile, file_id: int, *, has_header: bool = False
) -> tuple[JournalFileHeader | None, Iterator[JournalBatch]]:
    """Return the header and the complete batches of one file, up to its valid end.

    The caller keeps the file open until it has taken the last batch. The header is None if the file was made ready for
    version 1 and not used. A file with a header and no batch was not used, or was torn in its first batch.

    Args:
        has_header: the file was made for version 2, so a header that is not sound is damage.

    Raises:
        JournalCorruptError: the durable part is damaged; names file and offset. Raised here, or by the iterator after
            the batches before the damage.
        BookieStorageError: the file cannot be read.
    """
    return _scan(ScanWindow(file.read_at, file.size()), file_id, str(file.path), has_header=has_header)


def _scan(
    window: ScanWindow, file_id: int, name: str, *, has_header: bool
) -> tuple[JournalFileHeader | None, Iterator[JournalBatch]]:
    place = window.at(0, BLOCK_BYTES)
    header = decode_file_header(window.view[place : place + BLOCK_BYTES], name)
    is_used = header is not None and header.file_id == file_id  # else the header is that of an earlier use, if any
    if window.size < BLOCK_BYTES or (header is not None and is_used and window.size < header.file_bytes):
        # Files have their size before they get their name and never shrink in use, so no crash leaves a short one.
        raise JournalCorruptError(f"{name}: damaged at offset {window.size}, where the file was cut off")
    if header is None or not is_used:
        if has_header:
            raise JournalCorruptError(f"{name}: damaged at offset 0, where each journal file has its own header")
        _refuse_later_batches(window, file_id.to_bytes(TAG_BYTES, "big"), 1, 0, name)  # as version 1 tagged
        return None, iter(())
    return header, _batches(window, header, name)


def _batches(window: ScanWindow, header: JournalFileHeader, name: str) -> Iterator[JournalBatch]:
    offset, number, sequence = BLOCK_BYTES, 1, header.first_sequence
    while True:
        batch = _read_batch(window, offset, header.tag, number, sequence, name)
        if batch is None:
            _refuse_later_batches(window, header.tag, number, offset, name)
            return
        yield batch
        offset, number, sequence = batch.end, number + 1, batch.next_sequence


def _read_batch(
    window: ScanWindow, offset: int, tag: bytes, number: int, sequence: int | None, name: str
) -> JournalBatch | None:
    """Return batch ``number`` at ``offset``, whose first record has this sequence (None: any)."""
    records: list[JournalRecord] = []
    start = offset
    while True:
        found = _read_record(window, offset, tag)
        if found is None or found[0] != number:
            return None
        _, found_sequence, kind, payload = found
        if sequence is not None and found_sequence != sequence:
            raise JournalCorruptError(f"{name}: record {found_sequence} at offset {offset}, expected {sequence}")
        sequence = found_sequence + 1
        if kind is Kind.END:
            return JournalBatch(number, start, offset + RECORD_HEADER_BYTES + len(payload), records, sequence)
        records.append(_new_record(JournalRecord, (kind, offset, payload)))
        offset += RECORD_HEADER_BYTES + len(payload)


def _read_record(window: ScanWindow, offset: int, tag: bytes) -> tuple[int, int, Kind, memoryview] | None:
    """Return batch, sequence, kind and payload of the record at ``offset``; None if there is no sound one."""
    view, place = window.view, offset - window.start
    if place < 0 or place + RECORD_HEADER_BYTES > len(view):
        if offset + RECORD_HEADER_BYTES > window.size:
            return None
        place = window.at(offset, RECORD_HEADER_BYTES)
        view = window.view
    checksum, length, found_tag, sequence, batch, number = RECORD.unpack_from(view, place)
    if found_tag != tag or length > PAYLOAD_BYTES_MAX:  # I19
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


def _refuse_later_batches(window: ScanWindow, tag: bytes, number: int, offset: int, name: str) -> None:
    """Raise JournalCorruptError if a batch after the unreadable batch ``number`` at ``offset`` was ever written."""
    for later in range(offset + BLOCK_BYTES, window.size, BLOCK_BYTES):
        found = _read_record(window, later, tag)
        if found is not None and found[0] > number:
            raise JournalCorruptError(
                f"{name}: damaged at offset {offset} (batch {number}), while batch {found[0]} at offset {later} "
                "proves that it was once whole"
            )
