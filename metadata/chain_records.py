"""The pieces of a topic's chain: runs of its ledgers, moved from the topic's record to separate nodes.

A topic's record has the newest ledgers, and one ``PieceRef`` for each run before them. docs/formats-metadata.md
describes the tree that they make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class PieceRef(NamedTuple):
    """A run of adjacent closed ledgers, none of them empty, whose rows are in the node ``number``.

    The node may begin with ledgers that were trimmed since; ``first_id`` and the sums do not count them.

    Args:
        number: names the node (``paths.chain_piece``); a topic never gives one twice.
        level: 1 if the node has ledgers, above if it has pieces of the level below.
        first_id, last_id: the oldest and the newest ledger.
        ledgers, entries, size: the numbers of ledgers, of their entries and of their bytes.
        closed_ms: when the oldest ledger was closed.
    """

    number: int
    level: int
    first_id: int
    last_id: int
    ledgers: int
    entries: int
    size: int
    closed_ms: int


@dataclass(frozen=True, slots=True)
class ChainPiece:
    """The node of a piece: its ledgers as columns, oldest first, or the pieces that it consists of. It never changes.

    The ids stand in decimal digits in both: the search for orphaned ledgers of earlier versions reads any number.
    """

    ledger_ids: tuple[int, ...] = ()
    entries: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    closed_ms: tuple[int, ...] = ()
    pieces: tuple[PieceRef, ...] = ()

    def __post_init__(self) -> None:
        columns = (self.ledger_ids, self.entries, self.sizes, self.closed_ms)
        assert len({len(column) for column in columns}) == 1, "a row has all columns"
        assert bool(self.ledger_ids) != bool(self.pieces), "a piece has ledgers or pieces"
