"""Bytes of one record in a cursor ledger (pure; byte map in docs/formats.md, "Cursor ledger").

    offset  size  field
    0       1     format version, 1
    1       1     kind: 1 delta, 2 part of a snapshot
    2       2     flags: bit 0 = reset (a seek; the state before is void)
    4       4     CRC32C of everything from offset 8 to the end
    8       8     base: entry id of the first part of the newest complete snapshot before this record, -1 for none
    16      4     number of this part, from 0 (delta: 0)
    20      4     parts of the snapshot (delta: 1)
    24      -     msgpack array: [mark, acknowledged, partial]

All integers are big-endian. ``mark`` is [ledger id, entry id] of the last entry of the acknowledged prefix. Each item
of ``acknowledged`` is [ledger id, first entry id, n] for n entries in a row, or with a bitmap (little-endian, bit i
stands for first + i) instead of n. Each item of ``partial`` is [ledger id, entry id, bitmap of messages not
acknowledged].

A snapshot is complete when all its parts are there; they are neighbours in the ledger. Recovery reads the last record,
goes to its base (or to the start of the snapshot that it completes) and applies everything from there on.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import crc32c
import msgpack

from heliograph.actors.broker.cursor.cursor import Cursor, CursorDelta
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError

RECORD_VERSION = 1
PART_ITEMS_MAX = 4096  # items of either kind in one part of a snapshot: about 600 KiB of bitmaps for entries
PART_BITMAP_BYTES_MAX = 1 << 20  # of one part, so that it fits an entry even if batches are large
_HEAD = struct.Struct(">BBHI")
_REST = struct.Struct(">qII")
_HEADER_BYTES = _HEAD.size + _REST.size
_RESET = 1

_pack = msgpack.Packer(autoreset=True).pack  # one for all records: each acknowledgement may write one
_Item = tuple[int, int, bytes]  # ledger id, entry id, bits

assert _HEADER_BYTES == 24


class RecordKind(enum.IntEnum):
    """The kind of a record."""

    DELTA = 1
    SNAPSHOT = 2


@dataclass(frozen=True, slots=True)
class CursorEntry:
    """A decoded record."""

    kind: RecordKind
    reset: bool
    base: int
    part: int
    parts: int
    mark: Position
    acknowledged: list[tuple[int, int, int | bytes]]
    partial: list[tuple[int, int, bytes]]

    @property
    def completes_snapshot(self) -> bool:
        """Return whether this record is the last part of a snapshot."""
        return self.kind is RecordKind.SNAPSHOT and self.part == self.parts - 1


def encode_delta(delta: CursorDelta, chain: Chain, base: int) -> bytes:
    """Return the record of one delta."""
    acknowledged: list[tuple[int, int, int]] = []
    if delta.acknowledged:  # few deltas have more than a mark
        entries = sorted(index for index in delta.acknowledged if index >= delta.mark)
        acknowledged = [item for first, count in _runs(entries) for item in _run_items(first, count, chain)]
    partial = _partial_items(delta.partial, chain) if delta.partial else []
    body = (tuple(chain.position_before(delta.mark)), acknowledged, partial)
    return _encode(RecordKind.DELTA, _RESET if delta.reset else 0, base, 0, 1, body)


def encode_snapshot(cursor: Cursor, chain: Chain, base: int) -> list[bytes]:
    """Return the parts of a snapshot of the whole state, at least one."""
    mark = tuple(chain.position_before(cursor.mark))
    acknowledged = list(_bitmap_items(cursor, chain))
    partial = _partial_items(cursor.partial_items(), chain)
    parts = list(_parts(acknowledged, partial))
    return [
        _encode(RecordKind.SNAPSHOT, 0, base, number, len(parts), (mark, *part)) for number, part in enumerate(parts)
    ]


def decode(data: bytes | memoryview) -> CursorEntry:
    """Check and decode one record.

    Raises:
        EntryDamagedError: too short, of another version, or the checksum is wrong.
    """
    if len(data) < _HEADER_BYTES:
        raise EntryDamagedError(f"a cursor record of {len(data)} bytes is shorter than its header")
    version, kind, flags, checksum = _HEAD.unpack_from(data)
    if version != RECORD_VERSION:
        raise EntryDamagedError(f"cursor record format {version}, this program reads {RECORD_VERSION}")
    if crc32c.crc32c(memoryview(data)[_HEAD.size :]) != checksum:
        raise EntryDamagedError("a cursor record fails its checksum")
    base, part, parts = _REST.unpack_from(data, _HEAD.size)
    mark, acknowledged, partial = msgpack.unpackb(memoryview(data)[_HEADER_BYTES:], use_list=False)
    reset = bool(flags & _RESET)
    return CursorEntry(RecordKind(kind), reset, base, part, parts, Position(*mark), list(acknowledged), list(partial))


def apply_record(record: CursorEntry, cursor: Cursor, chain: Chain) -> None:
    """Apply one record to ``cursor``. Entries of ledgers that were trimmed count as acknowledged."""
    mark = chain.after(record.mark)
    if record.kind is RecordKind.SNAPSHOT:
        if record.part == 0:
            cursor.apply(CursorDelta(True, mark, (), ()))
    else:
        cursor.apply(CursorDelta(record.reset, mark, (), ()))
    for ledger_id, entry_id, what in record.acknowledged:
        first = chain.find(Position(ledger_id, entry_id))
        if first is not None:
            cursor.restore_chunk(first, (1 << what) - 1 if isinstance(what, int) else int.from_bytes(what, "little"))
    for ledger_id, entry_id, bitmap in record.partial:
        index = chain.find(Position(ledger_id, entry_id))
        if index is not None:
            cursor.restore_partial(index, int.from_bytes(bitmap, "little"))


def _encode(kind: RecordKind, flags: int, base: int, part: int, parts: int, body: Any) -> bytes:
    packed: bytes = _pack(body)
    rest = _REST.pack(base, part, parts) + packed
    return _HEAD.pack(RECORD_VERSION, kind, flags, crc32c.crc32c(rest)) + rest


def _bitmap_items(cursor: Cursor, chain: Chain) -> Iterator[tuple[int, int, bytes]]:
    for first, bits in cursor.acknowledged_chunks():
        for span in chain.spans(first, bits.bit_length()):
            part = (bits >> (span.first - first)) & ((1 << span.length) - 1)
            if part:
                yield span.ledger_id, span.entry_id, _bitmap(part)


def _parts(acknowledged: list[_Item], partial: list[_Item]) -> Iterator[tuple[list[_Item], list[_Item]]]:
    """Yield both lists cut into what one record holds of them; at least one part."""
    done_acknowledged = done_partial = 0
    while True:
        first, second = done_acknowledged, done_partial
        done_acknowledged, room = _fitting(acknowledged, first, PART_BITMAP_BYTES_MAX)
        done_partial, _ = _fitting(partial, second, room)
        if (done_acknowledged, done_partial) == (first, second) and done_partial < len(partial):
            done_partial += 1
        yield acknowledged[first:done_acknowledged], partial[second:done_partial]
        if done_acknowledged == len(acknowledged) and done_partial == len(partial):
            return


def _fitting(items: list[_Item], first: int, room: int) -> tuple[int, int]:
    """Return the index after the last item from ``first`` on that fits a part, and the bytes of bitmaps that still
    fit."""
    stop = first
    while stop < min(len(items), first + PART_ITEMS_MAX) and len(items[stop][2]) <= room:
        room -= len(items[stop][2])
        stop += 1
    return stop, room


def _partial_items(items: Iterable[tuple[int, int]], chain: Chain) -> list[tuple[int, int, bytes]]:
    return [(*chain.position_at(index), _bitmap(bits)) for index, bits in items if chain.first <= index < chain.end]


def _bitmap(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _runs(entries: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of adjacent integers in a sorted list without repeats."""
    first = stop = -1
    for index in entries:
        if index != stop:
            if first >= 0:
                yield first, stop - first
            first = index
        stop = index + 1
    if first >= 0:
        yield first, stop - first


def _run_items(first: int, count: int, chain: Chain) -> Iterable[tuple[int, int, int]]:
    """Return the items of adjacent entries: one for each ledger that has some, as ``spans`` of the chain has them."""
    if chain.first <= first and first + count <= chain.end:  # almost every run is in one ledger: no spans are made
        ledger_id, entry_id = chain.position_at(first)
        if count == 1 or chain.position_at(first + count - 1) == (ledger_id, entry_id + count - 1):
            return ((ledger_id, entry_id, count),)
    return ((span.ledger_id, span.entry_id, span.length) for span in chain.spans(first, count))
