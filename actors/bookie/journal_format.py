"""Journal files as bytes: pure functions (docs/formats-bookie.md, "Journal").

A file is a header block, then batches. A batch is what one sync made durable; it starts and ends on a block boundary,
so no later write touches a block that holds acknowledged records. Each record names the file that it was written for
(files are recycled, so old content lies behind the valid end), its sequence number and its batch:

    offset  size  field
    0       4     CRC32C of everything from offset 4 to the end of the payload
    4       4     payload length
    8       8     file id
    16      8     sequence, one more than the record before, over all files of the journal
    24      4     batch, from 1 in each file
    28      1     kind
    29      3     zero
    32      -     payload

The last record of a batch is END, whose payload is zeros up to the next block boundary.

Telling a torn tail from damage: batch n+1 is only written after batch n was synced. So when batch n cannot be read and
a record of a batch above n can, n was durable once: damage, refuse. When there is none, n was never acknowledged as a
whole, and none of it counts.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import crc32c

from actors.errors import JournalCorruptError

JOURNAL_VERSION = 1
BLOCK_BYTES = 4096
RECORD_HEADER_BYTES = 32
_MAGIC = b"HELIOJNL"
# magic, version, CRC32C of the block with this field zero, id, first sequence, bytes of the file when it was begun
_FILE_HEADER = struct.Struct(">8sIIQQQ")
_CHECKSUM = struct.Struct(">I")
_REST = struct.Struct(">IQQIB3x")
_RECORD = struct.Struct(">IIQQIB3x")
_LEDGER = struct.Struct(">q")
_LEDGER_LAC = struct.Struct(">qq")

assert _RECORD.size == RECORD_HEADER_BYTES == _CHECKSUM.size + _REST.size


class Kind(enum.IntEnum):
    """What a record's payload is."""

    ENTRY = 1  # an entry, actors/wire/entry.py
    FENCE = 2  # i64 ledger id
    LAC = 3  # i64 ledger id, i64 LAC set explicitly
    END = 4  # zeros: the batch is complete


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A record that was read; ``offset`` is that of its header in the file."""

    kind: Kind
    sequence: int
    offset: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """A complete batch, without its END; ``end`` is the offset behind it."""

    number: int
    offset: int
    end: int
    records: tuple[JournalRecord, ...]
    next_sequence: int


@dataclass(frozen=True, slots=True)
class JournalFileHeader:
    """The first block of a file. The file is never shorter than ``file_bytes`` again (0: not noted)."""

    file_id: int
    first_sequence: int
    file_bytes: int


def encode_file_header(file_id: int, first_sequence: int, file_bytes: int) -> bytes:
    """The header block."""
    block = bytearray(BLOCK_BYTES)
    _FILE_HEADER.pack_into(block, 0, _MAGIC, JOURNAL_VERSION, 0, file_id, first_sequence, file_bytes)
    checksum = crc32c.crc32c(bytes(block))
    _FILE_HEADER.pack_into(block, 0, _MAGIC, JOURNAL_VERSION, checksum, file_id, first_sequence, file_bytes)
    return bytes(block)


def decode_file_header(data: bytes | memoryview, name: str) -> JournalFileHeader | None:
    """The header, or None when the block holds none that can be trusted.

    Raises:
        JournalCorruptError: a sound header of a format that this program does not read.
    """
    block = bytearray(data[:BLOCK_BYTES])
    if len(block) < BLOCK_BYTES:
        return None
    magic, version, checksum, *fields = _FILE_HEADER.unpack_from(block)
    _FILE_HEADER.pack_into(block, 0, magic, version, 0, *fields)
    if magic != _MAGIC or crc32c.crc32c(bytes(block)) != checksum:
        return None
    if version != JOURNAL_VERSION:
        raise JournalCorruptError(f"{name}: journal format {version}, this program reads {JOURNAL_VERSION}")
    return JournalFileHeader(*fields)


def encode_batch(records: Iterable[Sequence[object]], file_id: int, sequence: int, batch: int) -> tuple[bytes, int]:
    """Bytes of one batch, and the sequence of the record after it.

    Args:
        records: kind and payload are the first two items of each (more are ignored, so that a queue's items fit).
        sequence: of the first record.
    """
    parts: list[bytes] = []
    size = 0
    pack, checksum, crc = _REST.pack, _CHECKSUM.pack, crc32c.crc32c
    for record in records:
        kind, payload = record[0], record[1]
        assert isinstance(payload, bytes)
        rest = pack(len(payload), file_id, sequence, batch, kind)
        parts += (checksum(crc(payload, crc(rest))), rest, payload)
        size += RECORD_HEADER_BYTES + len(payload)
        sequence += 1
    padding = bytes(-(size + RECORD_HEADER_BYTES) % BLOCK_BYTES)
    rest = pack(len(padding), file_id, sequence, batch, Kind.END)
    parts += (checksum(crc(padding, crc(rest))), rest, padding)
    data = b"".join(parts)
    assert len(data) % BLOCK_BYTES == 0, "batches fill whole blocks"
    return data, sequence + 1


def encode_fence(ledger_id: int) -> bytes:
    """Payload of a FENCE record."""
    return _LEDGER.pack(ledger_id)


def decode_fence(payload: bytes | memoryview) -> int:
    """Ledger id of a FENCE record."""
    (ledger_id,) = _LEDGER.unpack(payload)
    return int(ledger_id)


def encode_lac(ledger_id: int, last_add_confirmed: int) -> bytes:
    """Payload of a LAC record."""
    return _LEDGER_LAC.pack(ledger_id, last_add_confirmed)


def decode_lac(payload: bytes | memoryview) -> tuple[int, int]:
    """Ledger id and LAC of a LAC record."""
    ledger_id, last_add_confirmed = _LEDGER_LAC.unpack(payload)
    return ledger_id, last_add_confirmed


def scan_file(data: bytes | memoryview, file_id: int, name: str) -> tuple[JournalFileHeader | None, list[JournalBatch]]:
    """Header and complete batches of one file, up to its valid end.

    The header is None when the file holds nothing that was ever durable: made ready and not used yet, or torn in its
    first batch.

    Raises:
        JournalCorruptError: damage before the end of what was durable; names ``name`` and the offset.
    """
    header, found = read_file_batches(data, file_id, name)
    batches = list(found)
    return (header, batches) if batches else (None, [])  # the header is written together with the first batch


def read_file_batches(
    data: bytes | memoryview, file_id: int, name: str
) -> tuple[JournalFileHeader | None, Iterator[JournalBatch]]:
    """``scan_file`` one batch at a time: a file of small records has very many of them.

    Raises:
        JournalCorruptError: as ``scan_file``, here or, after the batches before the damage, from the iterator.
    """
    view = memoryview(data)
    header = decode_file_header(view, name)
    if len(view) < BLOCK_BYTES or (header is not None and len(view) < header.file_bytes):
        # Files are filled before they get their name and never shrink, so no crash leaves this.
        raise JournalCorruptError(f"{name}: damaged at offset {len(view)}, where the file was cut off")
    if header is None or header.file_id != file_id:
        _refuse_later_batches(view, file_id, 1, 0, name)
        return None, iter(())
    return header, _batches(view, header, name)


def _batches(view: memoryview, header: JournalFileHeader, name: str) -> Iterator[JournalBatch]:
    offset, number, sequence = BLOCK_BYTES, 1, header.first_sequence
    while True:
        batch = _read_batch(view, offset, header.file_id, number, sequence, name)
        if batch is None:
            _refuse_later_batches(view, header.file_id, number, offset, name)
            return
        yield batch
        offset, number, sequence = batch.end, number + 1, batch.next_sequence


def _read_batch(
    view: memoryview, offset: int, file_id: int, number: int, sequence: int, name: str
) -> JournalBatch | None:
    records: list[JournalRecord] = []
    start = offset
    while True:
        found = _read_record(view, offset, file_id)
        if found is None or found[0] != number:
            return None
        record = found[1]
        if record.sequence != sequence:
            raise JournalCorruptError(f"{name}: record {record.sequence} at offset {offset}, expected {sequence}")
        sequence += 1
        offset += RECORD_HEADER_BYTES + len(record.payload)
        if record.kind is Kind.END:
            return JournalBatch(number, start, offset, tuple(records), sequence)
        records.append(record)


def _read_record(view: memoryview, offset: int, file_id: int) -> tuple[int, JournalRecord] | None:
    """Batch number and record at ``offset``, or None when no record of this file can be read there."""
    if offset + RECORD_HEADER_BYTES > len(view):
        return None
    checksum, length, record_file_id, sequence, batch, kind = _RECORD.unpack_from(view, offset)
    end = offset + RECORD_HEADER_BYTES + length
    if record_file_id != file_id or end > len(view):
        return None
    if crc32c.crc32c(view[offset + _CHECKSUM.size : end]) != checksum:
        return None
    try:
        return batch, JournalRecord(Kind(kind), sequence, offset, view[offset + RECORD_HEADER_BYTES : end])
    except ValueError:
        return None


def _refuse_later_batches(view: memoryview, file_id: int, number: int, offset: int, name: str) -> None:
    """Raise JournalCorruptError if a batch above ``number``, which cannot be read at ``offset``, was ever written."""
    for later in range(offset + BLOCK_BYTES, len(view), BLOCK_BYTES):
        found = _read_record(view, later, file_id)
        if found is not None and found[0] > number:
            raise JournalCorruptError(
                f"{name}: damaged at offset {offset} (batch {number}), while batch {found[0]} at offset {later} "
                "proves that it was once whole; restore the file, or start the bookie accepting the loss of its "
                "storage so that its ledgers are repaired from other bookies"
            )
