"""The entries of a compacted ledger (pure; byte map in docs/formats-broker.md).

First come the entries that were kept, each after its original position; then an index of all these positions in blocks,
so that opening the ledger does not read all of it; and last the history of compactions, which older releases do not
write, and do not read. The ledger's own digest covers every entry.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

from heliograph.actors.broker.compaction.chain import Positions
from heliograph.actors.broker.compaction.deletions import PastCompaction
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError
from heliograph.base.errors import ProtocolError
from heliograph.protocol import entry as codec

INDEX = 2  # kind of a block of the index
HISTORY = 3  # kind of the record behind the index
INDEX_POSITIONS_MAX = 32_768  # in one block of the index: half a MiB
_KIND = struct.Struct(">BB")
_PAIR_BYTES = 16
_PAST = struct.Struct(">qqq")  # ledger id and entry id of the horizon, ms since the epoch


def encode_kept(position: Position, section: bytes | memoryview) -> bytes:
    """Return the record of a topic's entry that was kept, perhaps with some of its messages emptied."""
    return codec.encode_kept(position.ledger_id, position.entry_id, section)


def decode_kept(data: bytes | memoryview) -> tuple[Position, memoryview]:
    """Return the original position and the entry.

    Raises:
        EntryDamagedError: the record is not a kept entry, or of another version.
    """
    try:
        ledger_id, entry_id, section = codec.decode_kept(data)
    except ProtocolError as error:
        raise EntryDamagedError(str(error)) from error
    return Position(ledger_id, entry_id), section


def encode_index(positions: Positions) -> list[bytes]:
    blocks = range(0, len(positions), INDEX_POSITIONS_MAX)
    return [
        _KIND.pack(codec.KEPT_VERSION, INDEX) + _in_network_order(positions.tobytes(first, INDEX_POSITIONS_MAX))
        for first in blocks
    ]


def decode_index(data: bytes | memoryview, positions: Positions) -> None:
    """Add the positions of one block to the positions of earlier blocks.

    Raises:
        EntryDamagedError: the record is not a block of an index, or of another version.
    """
    if len(data) < _KIND.size or (len(data) - _KIND.size) % _PAIR_BYTES:
        raise EntryDamagedError("the index of a compacted ledger is cut short")
    version, kind = _KIND.unpack_from(data)
    if (version, kind) != (codec.KEPT_VERSION, INDEX):
        raise EntryDamagedError(
            f"found version {version}, kind {kind} in a compacted ledger, not {codec.KEPT_VERSION}, {INDEX}"
        )
    positions.frombytes(_in_network_order(bytes(data[_KIND.size :])))


def encode_history(history: Sequence[PastCompaction]) -> bytes:
    return _KIND.pack(codec.KEPT_VERSION, HISTORY) + b"".join(_PAST.pack(*one.horizon, one.ended_ms) for one in history)


def decode_history(data: bytes | memoryview) -> tuple[PastCompaction, ...]:
    """Return the history of compactions.

    Raises:
        EntryDamagedError: the record is none of a history, or of another version.
    """
    if len(data) < _KIND.size or (len(data) - _KIND.size) % _PAST.size:
        raise EntryDamagedError("the history of a compacted ledger is cut short")
    version, kind = _KIND.unpack_from(data)
    if (version, kind) != (codec.KEPT_VERSION, HISTORY):
        raise EntryDamagedError(f"found version {version}, kind {kind} where a compacted ledger has its history")
    rows = _PAST.iter_unpack(memoryview(data)[_KIND.size :])
    return tuple(PastCompaction(Position(ledger_id, entry_id), ms) for ledger_id, entry_id, ms in rows)


def index_blocks(entries: int) -> int:
    """Return how many blocks the index of ``entries`` positions has."""
    return -(-entries // INDEX_POSITIONS_MAX)


def _in_network_order(data: bytes) -> bytes:
    if sys.byteorder == "big":
        return data
    numbers = array("q", data)
    numbers.byteswap()
    return numbers.tobytes()
