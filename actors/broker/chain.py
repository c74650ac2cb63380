"""A topic's ledgers as one line of entries (pure).

Inside a broker an entry is named by its *index*: how many entries the topic's ledgers hold before it, counted from the
oldest ledger known when the topic was opened. Cursors and dispatchers work on indexes, where "the next entry" is plain
addition; positions (ledger id, entry id) are what clients, cursor ledgers and metadata see. Indexes are never stored:
each opening of a topic counts anew.

A ledger's number of entries is decided before the next ledger gets its first entry (I12), so indexes never move.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from actors.broker.position import Position


class Span(NamedTuple):
    """``length`` neighbouring entries of one ledger; the other numbers are those of the first of them."""

    ledger_id: int
    entry_id: int
    first: int
    length: int


class Chain:
    """The ledgers of a topic in publish order. ``first`` is the index of the oldest entry kept, ``end`` one past the
    newest confirmed entry (I3: nothing at or beyond ``end`` is shown to anyone)."""

    def __init__(self) -> None:
        self._ledger_ids: list[int] = []
        self._firsts: list[int] = []  # index of entry 0 of each ledger
        self.end = 0

    @property
    def first(self) -> int:
        """Index of the oldest entry kept; equals ``end`` when there is none."""
        return self._firsts[0] if self._firsts else self.end

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        """All ledgers, oldest first."""
        return tuple(self._ledger_ids)

    @property
    def last_ledger_id(self) -> int:
        """The ledger that takes new entries."""
        return self._ledger_ids[-1]

    def append(self, ledger_id: int, entries: int = 0) -> None:
        """Add a ledger after all others, with the entries that it holds already."""
        assert entries >= 0, "a ledger holds no negative number of entries"
        assert not self._ledger_ids or ledger_id > self._ledger_ids[-1], "ledger ids of a topic grow"  # I12
        self._ledger_ids.append(ledger_id)
        self._firsts.append(self.end)
        self.end += entries

    def confirm(self, entry_id: int) -> int:
        """The last ledger is confirmed up to ``entry_id``; returns that entry's index."""
        index = self._firsts[-1] + entry_id
        assert index >= self.end - 1, "the confirmed end only grows"  # I2
        self.end = index + 1
        return index

    def drop_head(self) -> int:
        """Forget the oldest ledger and return its id. The last ledger is never dropped (I14)."""
        assert len(self._ledger_ids) > 1, "the ledger that takes entries stays"  # I14
        self._firsts.pop(0)
        return self._ledger_ids.pop(0)

    def entries_in(self, ledger_id: int) -> int:
        """How many confirmed entries a ledger of the chain holds."""
        at = bisect_left(self._ledger_ids, ledger_id)
        assert self._ledger_ids[at] == ledger_id, "the ledger is in the chain"
        return self._end_of(at) - self._firsts[at]

    def to_base(self, index: int) -> int:
        """The index in the topic's own chain, which this one is."""
        return index

    def from_base(self, base_index: int) -> int:
        """The index here of an entry of the topic's own chain, which this one is."""
        return base_index

    def find(self, position: Position) -> int | None:
        """Index of an entry that is kept and confirmed, else None."""
        at = bisect_left(self._ledger_ids, position.ledger_id)
        if at == len(self._ledger_ids) or self._ledger_ids[at] != position.ledger_id or position.entry_id < 0:
            return None
        index = self._firsts[at] + position.entry_id
        return index if index < self._end_of(at) else None

    def at_or_after(self, position: Position) -> int:
        """Index of the first entry kept that is not before ``position``; ``end`` when there is none."""
        at = bisect_left(self._ledger_ids, position.ledger_id)
        if at == len(self._ledger_ids):
            return self.end
        if self._ledger_ids[at] != position.ledger_id:
            return self._firsts[at]
        return min(self._firsts[at] + max(position.entry_id, 0), self._end_of(at))

    def after(self, position: Position) -> int:
        """Index of the first entry kept that is behind ``position``; ``end`` when there is none."""
        return self.at_or_after(Position(position.ledger_id, position.entry_id + 1))

    def position_at(self, index: int) -> Position:
        """The position of an entry between ``first`` and ``end``, or of the entry to come at ``end``."""
        assert self.first <= index <= self.end, "the index is in the chain"
        at = bisect_right(self._firsts, index) - 1
        return Position(self._ledger_ids[at], index - self._firsts[at])

    def position_before(self, index: int) -> Position:
        """The position of the entry before ``index``; before the oldest one: (oldest ledger, -1)."""
        if index <= self.first:
            return Position(self._ledger_ids[0], -1)
        return self.position_at(index - 1)

    def spans(self, first: int, count: int) -> Iterator[Span]:
        """``count`` entries from ``first`` on, cut where ledgers change; what is not in the chain is left out."""
        index, stop = max(first, self.first), min(first + count, self.end)
        while index < stop:
            at = bisect_right(self._firsts, index) - 1
            upto = min(stop, self._end_of(at))
            yield Span(self._ledger_ids[at], index - self._firsts[at], index, upto - index)
            index = upto

    def _end_of(self, at: int) -> int:
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else self.end
