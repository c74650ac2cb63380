"""A topic's ledgers as one sequence of entries (pure).

Inside a broker an entry is named by its *index*: the number of entries before it in the topic's ledgers, counted from
the oldest ledger known when the topic was opened. Cursors and dispatchers work on indexes, where the next entry is
plain addition. Clients, cursor ledgers and metadata use positions (ledger id, entry id). Indexes are never stored: each
opening of a topic counts from 0 again.

A ledger's number of entries is decided before the next ledger gets its first entry (I12), so the index of an entry
never changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from typing_extensions import override

from heliograph.actors.broker.records.position import Position, new_position


class Span(NamedTuple):
    """``length`` adjacent entries of one ledger, which begin at ``entry_id`` and at the index ``first``."""

    ledger_id: int
    entry_id: int
    first: int
    length: int


class Chain(ABC):
    """The entries of a topic by index, as a cursor or a reader sees them."""

    end: int  # the index after the newest confirmed entry: nothing at or after it is shown to anyone (I3)

    @property
    @abstractmethod
    def first(self) -> int:
        """Return the index of the oldest entry kept; it equals ``end`` when there is none."""

    @property
    @abstractmethod
    def ledger_ids(self) -> tuple[int, ...]:
        """Return all ledgers of the topic, oldest first."""

    @property
    @abstractmethod
    def last_ledger_id(self) -> int:
        """Return the ledger that takes new entries."""

    @abstractmethod
    def to_base(self, index: int) -> int:
        """Return the index of an entry in the topic's own chain."""

    @abstractmethod
    def from_base(self, base_index: int) -> int:
        """Return the index in this chain of an entry of the topic's own chain."""

    @abstractmethod
    def find(self, position: Position) -> int | None:
        """Return the index of an entry that is kept and confirmed, else None."""

    @abstractmethod
    def at_or_after(self, position: Position) -> int:
        """Return the index of the first entry kept at or after ``position``; ``end`` when there is none."""

    def after(self, position: Position) -> int:
        """Return the index of the first entry kept after ``position``; ``end`` when there is none."""
        return self.at_or_after(Position(position.ledger_id, position.entry_id + 1))

    @abstractmethod
    def position_at(self, index: int) -> Position:
        """Return the position of the entry at an index between ``first`` and ``end``; at ``end`` that of the next
        entry."""

    @abstractmethod
    def position_before(self, index: int) -> Position:
        """Return the position of the entry before ``index``; before the oldest entry it is (oldest ledger, -1)."""

    @abstractmethod
    def spans(self, first: int, count: int) -> Iterator[Span]:
        """Yield ``count`` entries from ``first`` on, cut where the ledger changes; entries not in the chain are left
        out."""


class LedgerChain(Chain):
    """The topic's own chain: its ledgers in publish order."""

    def __init__(self) -> None:
        self._ledger_ids: list[int] = []
        self._firsts: list[int] = []  # index of entry 0 of each ledger; grows, and never exceeds ``end``
        self.end = 0  # only grows (I2)

    @property
    @override
    def first(self) -> int:
        return self._firsts[0] if self._firsts else self.end

    @property
    @override
    def ledger_ids(self) -> tuple[int, ...]:
        return tuple(self._ledger_ids)

    @property
    @override
    def last_ledger_id(self) -> int:
        return self._ledger_ids[-1]

    def append(self, ledger_id: int, entries: int = 0) -> None:
        """Add a ledger after all others, with the entries that it holds already."""
        assert entries >= 0, "a ledger holds no negative number of entries"
        assert not self._ledger_ids or ledger_id > self._ledger_ids[-1], "ledger ids of a topic grow"  # I12
        self._ledger_ids.append(ledger_id)
        self._firsts.append(self.end)
        self.end += entries

    def confirm(self, entry_id: int) -> Position:
        """Confirm the last ledger up to ``entry_id`` and return the position of that entry."""
        end = self._firsts[-1] + entry_id + 1
        assert end >= self.end, "the confirmed end only grows"  # I2
        self.end = end
        return new_position((self._ledger_ids[-1], entry_id))

    def drop_head(self) -> int:
        """Remove the oldest ledger and return its id. The last ledger is never removed (I14)."""
        assert len(self._ledger_ids) > 1, "the ledger that takes entries stays"  # I14
        self._firsts.pop(0)
        assert self._firsts[0] <= self.end, "the head that is left begins within the chain"
        return self._ledger_ids.pop(0)

    def entries_in(self, ledger_id: int) -> int:
        """Return how many confirmed entries a ledger of the chain holds."""
        at = bisect_left(self._ledger_ids, ledger_id)
        assert self._ledger_ids[at] == ledger_id, "the ledger is in the chain"
        return self._end_of(at) - self._firsts[at]

    @override
    def to_base(self, index: int) -> int:
        return index

    @override
    def from_base(self, base_index: int) -> int:
        return base_index

    @override
    def find(self, position: Position) -> int | None:
        at = bisect_left(self._ledger_ids, position.ledger_id)
        if at == len(self._ledger_ids) or self._ledger_ids[at] != position.ledger_id or position.entry_id < 0:
            return None
        index = self._firsts[at] + position.entry_id
        end = self.end if at + 1 == len(self._firsts) else self._end_of(at)
        return index if index < end else None

    @override
    def at_or_after(self, position: Position) -> int:
        at = bisect_left(self._ledger_ids, position.ledger_id)
        if at == len(self._ledger_ids):
            return self.end
        if self._ledger_ids[at] != position.ledger_id:
            return self._firsts[at]
        return min(self._firsts[at] + max(position.entry_id, 0), self._end_of(at))

    @override
    def position_at(self, index: int) -> Position:
        first = self._firsts[-1]
        if first <= index <= self.end:  # as most are
            return new_position((self._ledger_ids[-1], index - first))
        assert self.first <= index < first, "the index is in the chain"
        at = bisect_right(self._firsts, index) - 1
        return Position(self._ledger_ids[at], index - self._firsts[at])

    @override
    def position_before(self, index: int) -> Position:
        if index <= self.first:
            return Position(self._ledger_ids[0], -1)
        return self.position_at(index - 1)

    @override
    def spans(self, first: int, count: int) -> Iterator[Span]:
        index, stop = max(first, self.first), min(first + count, self.end)
        while index < stop:
            at = bisect_right(self._firsts, index) - 1
            upto = min(stop, self._end_of(at))
            yield Span(self._ledger_ids[at], index - self._firsts[at], index, upto - index)
            index = upto

    def _end_of(self, at: int) -> int:
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else self.end
