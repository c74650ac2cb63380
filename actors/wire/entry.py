"""The bytes of one entry, the same on the wire, in the journal and in entry logs (docs/formats.md, "Entry"). Pure.

    offset  size  field
    0       1     format version, 1
    1       3     zero
    4       4     CRC32C of everything from offset 8 to the end
    8       8     ledger id
    16      8     entry id
    24      8     LAC that the writer knew
    32      8     ledger length, bytes of payload up to and including this entry
    40      -     payload

All integers are big-endian; ids are signed. Copies of one entry may differ in the LAC, so replicas are compared by
payload and length, never by bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

from heliograph.actors.errors import EntryDamagedError

ENTRY_VERSION = 1
ENTRY_HEADER_BYTES = 40
ENTRY_CHECKED_FROM = 8
_HEAD = struct.Struct(">II")  # version and zeros are one word: a flipped bit in either is noticed
_BODY = struct.Struct(">qqqq")
_ALL = struct.Struct(">IIqqqq")
_LENGTH = struct.Struct(">q")
_LENGTH_AT = 32
ENTRY_WORD = ENTRY_VERSION << 24  # version and zeros
LENGTH_BYTES = 4  # of the length before an entry, in an entry log and in the answer to READ_BATCH
RECORD_HEAD = struct.Struct(">IIIqqqq")  # that length, and the header of the entry
RECORD_HEAD_BYTES = RECORD_HEAD.size
CHECKED_AT = LENGTH_BYTES + ENTRY_CHECKED_FROM  # where in such a record the checksum begins to count

assert _HEAD.size == ENTRY_CHECKED_FROM == ENTRY_HEADER_BYTES - _BODY.size


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded entry. ``payload`` may be a view into a larger buffer."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: bytes | memoryview


def encode_entry(
    ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: bytes | memoryview
) -> bytes:
    return b"".join((encode_entry_head(ledger_id, entry_id, last_add_confirmed, length, payload), payload))


def encode_entry_head(
    ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: bytes | memoryview
) -> bytes:
    """Return the bytes of one entry up to its payload, which must be written right after them."""
    body = _BODY.pack(ledger_id, entry_id, last_add_confirmed, length)
    return _HEAD.pack(ENTRY_WORD, crc32c.crc32c(payload, crc32c.crc32c(body))) + body


def entry_head(data: bytes | memoryview) -> tuple[int, int, int]:
    """Return ledger id, entry id and LAC, without a check of the checksum.

    Raises:
        EntryDamagedError: the data is too short for a header, or of another format.
    """
    if len(data) < ENTRY_HEADER_BYTES:
        raise EntryDamagedError(f"an entry of {len(data)} bytes is shorter than its header")
    version, _, ledger_id, entry_id, lac, _ = _ALL.unpack_from(data)
    if version != ENTRY_WORD:
        raise EntryDamagedError(f"entry format {version:08x}, this program reads {ENTRY_WORD:08x}")
    return ledger_id, entry_id, lac


def entry_checksum(data: bytes | memoryview) -> int:
    """Return the checksum that an entry brings, of everything from ``ENTRY_CHECKED_FROM`` to its end."""
    checksum: int = _HEAD.unpack_from(data)[1]
    return checksum


def entry_length(data: bytes | memoryview) -> int:
    """Return the ledger length that an entry brings. The caller has checked the entry."""
    length: int = _LENGTH.unpack_from(data, _LENGTH_AT)[0]
    return length


def check_entry(data: bytes | memoryview) -> tuple[int, int, int]:
    """Check an entry, and return its ledger id, entry id and LAC.

    Raises:
        EntryDamagedError: wrong version, length or checksum.
    """
    if len(data) < ENTRY_HEADER_BYTES:
        raise EntryDamagedError(f"an entry of {len(data)} bytes is shorter than its header")
    version, checksum, ledger_id, entry_id, lac, _ = _ALL.unpack_from(data)
    if version != ENTRY_WORD:
        raise EntryDamagedError(f"entry format {version:08x}, this program reads {ENTRY_WORD:08x}")
    if crc32c.crc32c(memoryview(data)[_HEAD.size :]) != checksum:
        raise EntryDamagedError("an entry fails its checksum")
    return ledger_id, entry_id, lac


def decode_entry(data: bytes | memoryview) -> Entry:
    """Check and decode one entry.

    Raises:
        EntryDamagedError: wrong version, length or checksum.
    """
    ledger_id, entry_id, lac = check_entry(data)
    return Entry(ledger_id, entry_id, lac, entry_length(data), memoryview(data)[ENTRY_HEADER_BYTES:])
