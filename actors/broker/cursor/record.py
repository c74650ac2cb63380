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
acknowledged], or [-1 - ledger id, entry id, n] for an entry that consumers gave back n times (little-endian). A release
that does not know the latter finds no ledger of that id and passes over it. So it does for
[-1 - 2^62 - ledger id, entry id, counts], which has a byte for each message of an entry: how often it was given back
alone, or with a part of the entry. Both with 2^61 more before the ledger id count what was lost with a consumer, and
with 2^60 more what was then all that it had in hand.
[-2^63, ledger id, n] is passed over, too: n messages of the topic are acknowledged after this record, as it counts them
if ``TopicCount.after`` is that ledger.

A snapshot is complete when all its parts are there; they are neighbours in the ledger. Recovery reads the last record,
goes to its base (or to the start of the snapshot that it completes) and applies everything from there on.
"""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

import crc32c
import msgpack

from heliograph.actors.broker.cursor.cursor import Cursor, CursorDelta
from heliograph.actors.broker.cursor.index_set import CHUNK_BITS
from heliograph.actors.broker.cursor.return_counts import Counts
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError

RECORD_VERSION = 1
PART_ITEMS_MAX = 2048  # items of either kind in one part of a snapshot: about 300 KiB of bitmaps for entries
PART_BITMAP_BYTES_MAX = 1 << 20  # of either kind in one part, so that it fits an entry even if batches are large
STEP_ROWS_MAX = 2_000  # rows restored before the event loop may turn: 2 to 10 ms (I24)
_ROW_BITS = 64  # acknowledged entries of a bitmap that count as one row
_HEAD = struct.Struct(">BBHI")
_REST = struct.Struct(">qII")
_HEADER_BYTES = _HEAD.size + _REST.size
_RESET = 1
_MESSAGES = 1 << 62  # added to the id of a ledger in an item with counts of messages
_CRASHES = 1 << 61  # added to it if they count what was lost with a consumer
_ALONE = 1 << 60  # added to it if they count what was lost as all that a consumer had in hand
_ACKNOWLEDGED = -(1 << 63)  # in the place of a ledger's id in the item with the number of acknowledged messages
_ARRAY_OF_3 = b"\x93"  # of msgpack
_ARRAY_16 = 0xDC  # the first byte of a list of more than 15 items, whose number follows in 2 bytes
_EMPTY_LIST = b"\x90"

_pack = msgpack.Packer(autoreset=True).pack  # one for all records: each acknowledgement may write one
_pack_head = msgpack.Packer(autoreset=True).pack_array_header
_Item = tuple[int, int, bytes]  # ledger id, entry id, bits

assert _HEADER_BYTES == 24


class RecordKind(enum.IntEnum):
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
        return self.kind is RecordKind.SNAPSHOT and self.part == self.parts - 1


def encode_delta(delta: CursorDelta, chain: Chain, base: int) -> bytes:
    acknowledged: list[tuple[int, int, int]] = []
    if delta.acknowledged:  # few deltas have more than a mark
        entries = sorted(index for index in delta.acknowledged if index >= delta.mark)
        acknowledged = [item for first, count in _runs(entries) for item in _run_items(first, count, chain)]
    partial = list(_partial_items(delta.partial, chain)) if delta.partial else []
    if delta.refused:
        partial += _count_items(delta.refused, chain)
    if delta.crashed:
        partial += _count_items(delta.crashed, chain, _CRASHES)
    if delta.crashed_alone:
        partial += _count_items(delta.crashed_alone, chain, _ALONE)
    if delta.messages is not None:
        partial += _acknowledged_items(delta.messages, chain)
    body = (chain.position_before(delta.mark), acknowledged, partial)
    return _encode(RecordKind.DELTA, _RESET if delta.reset else 0, base, 0, 1, _pack(body))


def snapshot_steps(cursor: Cursor, chain: Chain, base: int) -> Generator[None, None, list[bytes]]:
    """Return the parts of a snapshot of the whole state, at least one. A large one yields between steps of at most
    ``PART_ITEMS_MAX`` items or one part: 5 to 10 ms (I24).

    The cursor may change meanwhile. The snapshot holds everything that was acknowledged before the first step (I11),
    and perhaps some of what was acknowledged since, which the next delta names. Part 0 has the mark of the last step,
    because the mark may have passed entries before they were gathered. A seek starts the snapshot over.
    """
    while True:
        resets, messages = cursor.resets, cursor.acknowledged_messages
        partial: list[bytes] = []
        acknowledged: list[bytes] = []
        refused = _count_items(cursor.refused.items(), chain)
        crashed = _count_items(cursor.crashed.items(), chain, _CRASHES)
        alone = _count_items(cursor.crashed_alone.items(), chain, _ALONE)
        for lists, items in (
            # first: see ``partial_items``
            (partial, itertools.chain(_partial_items(cursor.partial_items(), chain), refused, crashed, alone)),
            (acknowledged, _bitmap_items(cursor, chain)),
        ):
            for packed in _packed_lists(items):
                if lists:
                    yield
                lists.append(packed)
        parts = max(len(partial), len(acknowledged), 1)
        records = [b""] * parts
        for number in reversed(range(parts)):
            mark = _pack(tuple(chain.position_before(cursor.mark)))
            held = _list_at(partial, number)
            if not number and messages == cursor.acknowledged_messages:
                held = _extended(held, _acknowledged_items(messages, chain))
            body = (_ARRAY_OF_3, mark, _list_at(acknowledged, number), held)
            records[number] = _encode(RecordKind.SNAPSHOT, 0, base, number, parts, b"".join(body))
            if number:
                yield
        if cursor.resets == resets:
            return records


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


def apply_record(record: CursorEntry, cursor: Cursor, chain: Chain) -> Iterator[int]:
    """Apply one record to ``cursor``. Entries of ledgers that were trimmed count as acknowledged.

    Yields:
        the rows applied since the last yield, about ``STEP_ROWS_MAX`` at most; the event loop may turn there (I24).
    """
    mark = chain.after(record.mark)
    is_trimmed = record.mark < chain.position_before(chain.first)  # the number of messages lacks those of the trimmed
    if record.part == 0:
        cursor.restore_mark(mark, is_reset=record.reset or record.kind is RecordKind.SNAPSHOT)
    rows = 1
    for ledger_id, entry_id, what in record.acknowledged:
        for first_id, bits in _chunks_of(entry_id, what):
            for first, found in chain.find_chunk(Position(ledger_id, first_id), bits):
                cursor.restore_chunk(first, found)
            rows += 1 + bits.bit_count() // _ROW_BITS
            if rows >= STEP_ROWS_MAX:
                yield rows
                rows = 0
    for ledger_id, entry_id, bitmap in record.partial:
        restore: Callable[[int, int], None] = cursor.restore_partial
        if ledger_id < 0:
            if ledger_id == _ACKNOWLEDGED:
                if chain.count is not None and chain.count.after == entry_id and not is_trimmed:
                    cursor.restore_messages(int.from_bytes(bitmap, "little"))
                continue
            ledger_id, restore = _restorer(cursor, ~ledger_id)
        index = chain.find(Position(ledger_id, entry_id))
        if index is not None:
            restore(index, int.from_bytes(bitmap, "little"))
        rows += 1
        if rows >= STEP_ROWS_MAX:
            yield rows
            rows = 0
    yield rows


def _restorer(cursor: Cursor, ledger_id: int) -> tuple[int, Callable[[int, int], None]]:
    """Return the ledger id of an item with counts, and what restores them."""
    counts = cursor.crashed if ledger_id & _CRASHES else cursor.refused
    if ledger_id & _ALONE:
        counts = cursor.crashed_alone
    restore = counts.restore_messages if ledger_id & _MESSAGES else counts.restore_entry
    return ledger_id & ~(_ALONE | _CRASHES | _MESSAGES), lambda index, number: cursor.restore_counts(
        index, number, restore
    )


def _chunks_of(entry_id: int, what: int | bytes) -> Iterator[tuple[int, int]]:
    """Yield an item of ``acknowledged`` as (entry id, bits). A run of any length comes in pieces."""
    if isinstance(what, bytes):
        yield entry_id, int.from_bytes(what, "little")
        return
    for first in range(0, what, CHUNK_BITS):
        yield entry_id + first, (1 << min(CHUNK_BITS, what - first)) - 1


def _encode(kind: RecordKind, flags: int, base: int, part: int, parts: int, body: bytes) -> bytes:
    rest = _REST.pack(base, part, parts) + body
    return _HEAD.pack(RECORD_VERSION, kind, flags, crc32c.crc32c(rest)) + rest


def _bitmap_items(cursor: Cursor, chain: Chain) -> Iterator[tuple[int, int, bytes]]:
    for chunk, chunk_bits in cursor.acknowledged_chunks():
        # Positions of the chunk before its first acknowledged entry may be in older ledgers that are not in memory.
        below = (chunk_bits & -chunk_bits).bit_length() - 1
        first, bits = chunk + below, chunk_bits >> below
        for span in chain.spans(first, bits.bit_length()):
            part = (bits >> (span.first - first)) & ((1 << span.length) - 1)
            if part:
                yield span.ledger_id, span.entry_id, _bitmap(part)


def _packed_lists(items: Iterable[_Item]) -> Iterator[bytes]:
    """Yield the items in packed lists, each of what one part takes."""
    held: list[_Item] = []
    room = PART_BITMAP_BYTES_MAX
    for item in items:
        if held and (len(held) >= PART_ITEMS_MAX or len(item[2]) > room):
            yield _pack(held)
            held, room = [], PART_BITMAP_BYTES_MAX
        held.append(item)
        room -= len(item[2])
    if held:
        yield _pack(held)


def _extended(packed: bytes, items: list[_Item]) -> bytes:
    """Return a packed list with more items. It is not unpacked, which would take as long as to pack it again."""
    count, start = (int.from_bytes(packed[1:3], "big"), 3) if packed[0] == _ARRAY_16 else (packed[0] & 0x0F, 1)
    return b"".join((_pack_head(count + len(items)), packed[start:], *map(_pack, items)))


def _list_at(lists: list[bytes], number: int) -> bytes:
    return lists[number] if number < len(lists) else _EMPTY_LIST


def _partial_items(items: Iterable[tuple[int, int]], chain: Chain) -> Iterator[_Item]:
    for index, bits in items:
        if chain.first <= index < chain.end:
            yield *chain.position_at(index), _bitmap(bits)


def _count_items(items: Iterable[tuple[int, Counts]], chain: Chain, flag: int = 0) -> Iterator[_Item]:
    for index, counts in items:
        for base, value in ((flag, counts.entry), (flag | _MESSAGES, counts.messages)):
            if value:
                for ledger_id, entry_id, number in _partial_items([(index, value)], chain):
                    yield ~(base + ledger_id), entry_id, number


def _acknowledged_items(messages: int | None, chain: Chain) -> list[_Item]:
    """Return the item with the number of acknowledged messages, if that is known."""
    if messages is None or messages < 0 or chain.count is None:
        return []
    return [(_ACKNOWLEDGED, chain.count.after, _bitmap(messages))]


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
