"""The entries of a compacted ledger (pure; byte map in docs/formats-broker.md).

First come the entries that were kept, each after its original position; then an index of all these positions in blocks,
so that opening the ledger does not read all of it. The ledger's own digest covers every entry.
"""

from __future__ import annotations

import struct
import sys
from array import array

from heliograph.actors.broker.compaction.chain import Positions
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError

VERSION = 1
KEPT, INDEX = 1, 2  # kinds of entries
INDEX_POSITIONS_MAX = 32_768  # in one block of the index: half a MiB
_HEAD = struct.Struct(">BBqq")
_KIND = struct.Struct(">BB")
_PAIR_BYTES = 16


def encode_kept(position: Position, section: bytes | memoryview) -> bytes:
    """Return the record of a topic's entry that was kept, perhaps with some of its messages emptied."""
    return _HEAD.pack(VERSION, KEPT, *position) + section


def decode_kept(data: bytes | memoryview) -> tuple[Position, memoryview]:
    """Return the original position and the entry.

    Raises:
        EntryDamagedError: the record is not a kept entry, or of another version.
    """
    if len(data) < _HEAD.size:
        raise EntryDamagedError("an entry of a compacted ledger is cut short")
    version, kind, ledger_id, entry_id = _HEAD.unpack_from(data)
    _check(version, kind, KEPT)
    return Position(ledger_id, entry_id), memoryview(data)[_HEAD.size :]


def encode_index(positions: Positions) -> list[bytes]:
    """Return the blocks of the index."""
    blocks = range(0, len(positions), INDEX_POSITIONS_MAX)
    return [
        _KIND.pack(VERSION, INDEX) + _in_network_order(positions.tobytes(first, INDEX_POSITIONS_MAX))
        for first in blocks
    ]


def decode_index(data: bytes | memoryview, positions: Positions) -> None:
    """Add the positions of one block to those of the blocks before it.

    Raises:
        EntryDamagedError: the record is not a block of an index, or of another version.
    """
    if len(data) < _KIND.size or (len(data) - _KIND.size) % _PAIR_BYTES:
        raise EntryDamagedError("the index of a compacted ledger is cut short")
    version, kind = _KIND.unpack_from(data)
    _check(version, kind, INDEX)
    positions.frombytes(_in_network_order(bytes(data[_KIND.size :])))


def index_blocks(entries: int) -> int:
    """Return how many blocks the index of ``entries`` positions has."""
    return -(-entries // INDEX_POSITIONS_MAX)


def _check(version: int, kind: int, wanted: int) -> None:
    if version != VERSION or kind != wanted:
        raise EntryDamagedError(f"found version {version}, kind {kind} in a compacted ledger, not {VERSION}, {wanted}")


def _in_network_order(data: bytes) -> bytes:
    if sys.byteorder == "big":
        return data
    numbers = array("q", data)
    numbers.byteswap()
    return numbers.tobytes()
