"""The bytes of journal files: pure functions (docs/formats-bookie.md, "Journal").

A file is a header block and then batches. A batch is what one sync made durable. It starts and ends on a block
boundary, so no later write touches a block that holds acknowledged records. Files are recycled, so old content follows
the valid end, and old content holds whatever clients sent. Each record therefore carries the tag of its file, a random
number of this use of the file, which no client knows (I19):

    offset  size  field
    0       4     CRC32C of everything from offset 4 to the end of the payload
    4       4     payload length
    8       8     tag of the file
    16      8     sequence, one more than the record before, over all files of the journal
    24      4     batch, from 1 in each file
    28      1     kind
    29      3     zero
    32      -     payload

The last record of a batch is END, whose payload is zeros up to the next block boundary. In files of version 1, which
are read and not written any more, the tag was the file id.
"""

from __future__ import annotations

import enum
import mmap
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c

from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.journal.checksums import combined_checksum
from heliograph.actors.errors import JournalCorruptError
from heliograph.actors.wire.entry import ENTRY_CHECKED_FROM, entry_checksum

JOURNAL_VERSION = 2
_VERSIONS_READ = (1, JOURNAL_VERSION)
TAG_BYTES = 8
RECORD_HEADER_BYTES = 32
_COMBINED_BYTES_LEAST = 32 << 10  # of an entry, from which on its checksum is not computed again
_MAGIC = b"HELIOJNL"
# magic, version, CRC32C of the block with this field zero, id, tag (version 1: first sequence), bytes of the file
_FILE_HEADER = struct.Struct(">8sIIQ8sQ")
_FIRST_SEQUENCE = struct.Struct(">Q")
CHECKSUM_BYTES = 4
_REST = struct.Struct(">I8sQIB3x")  # a large number would take longer to pack than its bytes
RECORD = struct.Struct(">II8sQIB3x")
_LEDGER = struct.Struct(">q")
_LEDGER_LAC = struct.Struct(">qq")

assert RECORD.size == RECORD_HEADER_BYTES == CHECKSUM_BYTES + _REST.size


class Kind(enum.IntEnum):
    """The kinds of records, by their payload."""

    ENTRY = 1  # an entry, actors/wire/entry.py
    FENCE = 2  # i64 ledger id
    LAC = 3  # i64 ledger id, i64 LAC set explicitly
    END = 4  # zeros: the batch is complete


_END = int(Kind.END)
_ZEROS = memoryview(bytes(BLOCK_BYTES))


@dataclass(frozen=True, slots=True)
class JournalFileHeader:
    """The first block of a file. A file shorter than ``file_bytes`` was cut off; 0: the size was not noted.

    Attributes:
        tag: what every record of the file carries: the file's id in version 1, a secret random number since (I19).
        first_sequence: of the file's first record; None: only that record says it, as since version 2.
    """

    version: int
    file_id: int
    tag: bytes = field(repr=False)
    file_bytes: int
    first_sequence: int | None = None


def encode_file_header(file_id: int, tag: bytes, file_bytes: int) -> bytes:
    return _header_block(JOURNAL_VERSION, file_id, tag, file_bytes)


def encode_empty_file(file_id: int) -> bytes:
    """Encode a whole file of version 1 that holds no record, and nothing of earlier uses."""
    return _header_block(1, file_id, _FIRST_SEQUENCE.pack(1), BLOCK_BYTES)


def _header_block(version: int, file_id: int, field_24: bytes, file_bytes: int) -> bytes:
    block = bytearray(BLOCK_BYTES)
    _FILE_HEADER.pack_into(block, 0, _MAGIC, version, 0, file_id, field_24, file_bytes)
    checksum = crc32c.crc32c(bytes(block))
    _FILE_HEADER.pack_into(block, 0, _MAGIC, version, checksum, file_id, field_24, file_bytes)
    return bytes(block)


def decode_file_header(data: bytes | memoryview, name: str) -> JournalFileHeader | None:
    """Decode the header; return None if the block holds no sound header.

    Raises:
        JournalCorruptError: the header is sound, and of a version that this program does not read.
    """
    block = bytearray(data[:BLOCK_BYTES])
    if len(block) < BLOCK_BYTES:
        return None
    magic, version, checksum, file_id, field_24, file_bytes = _FILE_HEADER.unpack_from(block)
    _FILE_HEADER.pack_into(block, 0, magic, version, 0, file_id, field_24, file_bytes)
    if magic != _MAGIC or crc32c.crc32c(bytes(block)) != checksum:
        return None
    if version not in _VERSIONS_READ:
        raise JournalCorruptError(f"{name}: journal format {version}, this program reads {_VERSIONS_READ}")
    if version == 1:
        tag = file_id.to_bytes(TAG_BYTES, "big")
        return JournalFileHeader(version, file_id, tag, file_bytes, _FIRST_SEQUENCE.unpack(field_24)[0])
    return JournalFileHeader(version, file_id, field_24, file_bytes)


def batch_bytes(records: Sequence[Sequence[Any]]) -> int:
    """Return the size of a batch with END and padding. The payload is the second item of each record."""
    return batch_bytes_of(len(records), sum([len(record[1]) for record in records]))


def batch_bytes_of(records: int, payload_bytes: int) -> int:
    """Return the size of a batch of so many records, whose payloads have ``payload_bytes`` bytes together."""
    size = payload_bytes + RECORD_HEADER_BYTES * (records + 1)
    return size + -size % BLOCK_BYTES


def encode_batch(
    memory: mmap.mmap | bytearray,
    start: int,
    records: Iterable[Sequence[Any]],
    tag: bytes,
    sequence: int,
    batch: int,
    placed: int = 0,
) -> tuple[int, int]:
    """Encode one batch into ``memory`` from ``start``; return its end and the sequence of the next record.

    Args:
        memory: has room for ``batch_bytes(records)``.
        records: kind and payload are the first two items of each; further items are ignored. The payload of an ENTRY
            was checked: where it is large, the checksum that it brings is taken and not computed again.
        tag: of the file.
        sequence: sequence of the first record.
        placed: so many of the first records have their payloads in ``memory`` already.
    """
    pack, pack_all, crc = _REST.pack, RECORD.pack_into, crc32c.crc32c
    at = start
    for kind, payload, *_ in records:
        size = len(payload)
        checksum = crc(pack(size, tag, sequence, batch, kind))
        if size < _COMBINED_BYTES_LEAST or kind != Kind.ENTRY:
            checksum = crc(payload, checksum)
        else:
            checksum_of_rest = entry_checksum(payload)
            checksum = crc(payload[:ENTRY_CHECKED_FROM], checksum)
            checksum = combined_checksum(checksum, checksum_of_rest, size - ENTRY_CHECKED_FROM)
        pack_all(memory, at, checksum, size, tag, sequence, batch, kind)
        at += RECORD_HEADER_BYTES
        if placed:
            placed -= 1
        else:
            memory[at : at + size] = payload
        at += size
        sequence += 1
    size = -(at - start + RECORD_HEADER_BYTES) % BLOCK_BYTES
    padding = _ZEROS[:size]
    checksum = crc(padding, crc(pack(size, tag, sequence, batch, _END)))
    pack_all(memory, at, checksum, size, tag, sequence, batch, _END)
    at += RECORD_HEADER_BYTES
    memory[at : at + size] = padding
    return at + size, sequence + 1


def encode_fence(ledger_id: int) -> bytes:
    return _LEDGER.pack(ledger_id)


def decode_fence(payload: bytes | memoryview) -> int:
    """Decode the ledger id of a FENCE record.

    Raises:
        JournalCorruptError: the payload holds no ledger id.
    """
    if len(payload) != _LEDGER.size or (ledger_id := _LEDGER.unpack(payload)[0]) < 0:
        raise JournalCorruptError(f"a fence of {len(payload)} bytes holds no ledger id")
    return int(ledger_id)


def encode_lac(ledger_id: int, last_add_confirmed: int) -> bytes:
    return _LEDGER_LAC.pack(ledger_id, last_add_confirmed)


def decode_lac(payload: bytes | memoryview) -> tuple[int, int]:
    """Decode ledger id and LAC of a LAC record.

    Raises:
        JournalCorruptError: the payload holds no valid pair.
    """
    if len(payload) != _LEDGER_LAC.size:
        raise JournalCorruptError(f"an explicit LAC of {len(payload)} bytes")
    ledger_id, last_add_confirmed = _LEDGER_LAC.unpack(payload)
    if ledger_id < 0 or last_add_confirmed < -1:
        raise JournalCorruptError(f"an explicit LAC of {last_add_confirmed} of ledger {ledger_id}")
    return ledger_id, last_add_confirmed
