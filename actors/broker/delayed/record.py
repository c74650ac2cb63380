"""Bytes of one run of a subscription's index of delayed entries (pure; byte map in docs/formats.md, "Delayed index").

    offset  size  field
    0       1     format version, 1
    1       1     kind, 1: a run
    2       2     reserved, 0
    4       4     CRC32C of everything from offset 8 to the end
    8       4     number of items
    12      -     msgpack array of 3 numbers for each item: due time in ms since the epoch, ledger id, entry id

All integers are big-endian. Items are sorted by due time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c
import msgpack

from heliograph.actors.broker.delayed.index import Item
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError

RECORD_VERSION = 1
_RUN = 1
_HEAD = struct.Struct(">BBHI")
_COUNT = struct.Struct(">I")
_BODY_FROM = _HEAD.size + _COUNT.size

assert _BODY_FROM == 12


def encode_run(items: Sequence[Item], chain: Chain) -> bytes:
    """Return the record of a run. Items of ledgers that were trimmed are left out; there may be none left."""
    numbers: list[int] = []
    for due_ms, index in items:
        if chain.first <= index < chain.end:
            numbers += (due_ms, *chain.position_at(index))
    packed: bytes = msgpack.packb(numbers)
    rest = _COUNT.pack(len(numbers) // 3) + packed
    return _HEAD.pack(RECORD_VERSION, _RUN, 0, crc32c.crc32c(rest)) + rest


def decode_run(data: bytes | memoryview, chain: Chain) -> list[Item | None]:
    """Return the items of a record; None stands for an entry that is not in the topic any more.

    Raises:
        EntryDamagedError: the record is too short, of another version, or its checksum is wrong.
    """
    if len(data) < _BODY_FROM:
        raise EntryDamagedError(f"a run of {len(data)} bytes is shorter than its header")
    version, kind, _, checksum = _HEAD.unpack_from(data)
    if (version, kind) != (RECORD_VERSION, _RUN):
        raise EntryDamagedError(f"delayed index format {version}.{kind}, this program reads {RECORD_VERSION}.{_RUN}")
    if crc32c.crc32c(memoryview(data)[_HEAD.size :]) != checksum:
        raise EntryDamagedError("a run of a delayed index fails its checksum")
    numbers = msgpack.unpackb(memoryview(data)[_BODY_FROM:])
    items: list[Item | None] = []
    for due_ms, ledger_id, entry_id in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        index = chain.find(Position(ledger_id, entry_id))
        items.append(None if index is None else (due_ms, index))
    return items
