"""Bytes of one record in a deduplication ledger (pure; byte map in docs/formats-broker.md, "Deduplication ledger").

    offset  size  field
    0       1     format version, 1
    1       3     zeros
    4       4     CRC32C of everything from offset 8 to the end
    8       8     base: entry id of the first part of the newest complete snapshot before this one, -1 for none
    16      4     number of this part, from 0
    20      4     parts of the snapshot
    24      -     msgpack array: [position, producers]

All integers are big-endian. ``position`` is [ledger id, entry id] of the last entry of the topic that the snapshot
knows of. Each item of ``producers`` is [name, highest persisted sequence id, ms since the epoch of its last activity].
An item whose name is binary is no producer, but a message of which some chunks are stored: its name is a msgpack array
[name of the producer, message, number of the last persisted chunk], and the sequence id is that of the message. With
the number -2 it stands for forgotten producers: the name is what theirs begin with, the message is empty, and the
sequence id is their highest. A release that does not know of these keeps them as producers that never connect.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c
import msgpack

from heliograph.actors.broker.dedup.dedup import Forgotten, Remembered, Stored, StoredChunks
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError

RECORD_VERSION = 1
_FORGOTTEN = -2  # in place of the number of a chunk
PART_PRODUCERS_MAX = 2048  # producers in one part: below 1 MiB with the longest names
_HEAD = struct.Struct(">B3xI")
_REST = struct.Struct(">qII")
_HEADER_BYTES = _HEAD.size + _REST.size

assert _HEADER_BYTES == 24


@dataclass(frozen=True, slots=True)
class DedupPart:
    """One decoded record."""

    base: int
    part: int
    parts: int
    position: Position
    producers: tuple[Stored, ...]

    @property
    def completes_snapshot(self) -> bool:
        return self.part == self.parts - 1


def encode(snapshot: Sequence[Stored], position: Position, base: int) -> list[bytes]:
    """Return the parts of a snapshot, at least one."""
    parts = max(-(-len(snapshot) // PART_PRODUCERS_MAX), 1)
    records = []
    for part in range(parts):
        own = snapshot[part * PART_PRODUCERS_MAX : (part + 1) * PART_PRODUCERS_MAX]
        rest = _REST.pack(base, part, parts) + msgpack.packb((tuple(position), [_row(one) for one in own]))
        records.append(_HEAD.pack(RECORD_VERSION, crc32c.crc32c(rest)) + rest)
    return records


def decode(data: bytes | memoryview) -> DedupPart:
    """Check and decode one record.

    Raises:
        EntryDamagedError: too short, of another version, or the checksum is wrong.
    """
    if len(data) < _HEADER_BYTES:
        raise EntryDamagedError(f"a deduplication record of {len(data)} bytes is shorter than its header")
    version, checksum = _HEAD.unpack_from(data)
    if version != RECORD_VERSION:
        raise EntryDamagedError(f"deduplication record format {version}, this program reads {RECORD_VERSION}")
    if crc32c.crc32c(memoryview(data)[_HEAD.size :]) != checksum:
        raise EntryDamagedError("a deduplication record fails its checksum")
    base, part, parts = _REST.unpack_from(data, _HEAD.size)
    position, producers = msgpack.unpackb(memoryview(data)[_HEADER_BYTES:], use_list=False)
    return DedupPart(base, part, parts, Position(*position), tuple(_of_row(*row) for row in producers))


def _row(one: Stored) -> tuple[str | bytes, int, int]:
    if isinstance(one, Remembered):
        if isinstance(one.name, bytes):  # a client's text that is not UTF-8: it must not pass for the other kind
            return one.name.decode("utf-8", "replace"), one.persisted, one.active_ms
        return one.name, one.persisted, one.active_ms
    if isinstance(one, Forgotten):
        return msgpack.packb((one.prefix, b"", _FORGOTTEN)), one.persisted, one.active_ms
    return msgpack.packb((one.name, one.message, one.number)), one.sequence_id, one.active_ms


def _of_row(name: str | bytes, sequence_id: int, active_ms: int) -> Stored:
    if isinstance(name, str):
        return Remembered(name, sequence_id, active_ms)
    producer, message, number = msgpack.unpackb(name, use_list=False)
    if number == _FORGOTTEN:
        return Forgotten(producer, sequence_id, active_ms)
    return StoredChunks(producer, message, sequence_id, number, active_ms)
