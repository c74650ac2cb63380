"""A topic's ledgers as one sequence of entries (pure).

Inside a broker an entry is named by its *index*: the number of entries before it in the topic's ledgers, counted from
the oldest ledger known when the topic was opened. Cursors and dispatchers work on indexes, where the next entry is
plain addition. Clients, cursor ledgers and metadata use positions (ledger id, entry id). Indexes are never stored: each
opening of a topic counts from 0 again.

A ledger's number of entries is decided before the next ledger gets its first entry (I12), so the index of an entry
never changes.

A long chain is in pieces (``actors/broker/records/topic_chain.py``). When a topic is opened, only its newest ledgers
are in memory, 24 bytes each, and of older ones the sums of their pieces. ``load`` reads pieces from the newest on,
until it has the one that is asked for. So the ledgers in memory are adjacent and include the last, and a caller that
loaded a position finds everything from there on. A subscription loads from its cursor's mark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from typing_extensions import override

from heliograph.actors.broker.records.message_count import TopicCount
from heliograph.actors.broker.records.position import Position, new_position
from heliograph.actors.broker.records.topic_chain import ReadPiece, parts_of, rows_of
from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata.chain_records import PieceRef


class Span(NamedTuple):
    """``length`` adjacent entries of one ledger, which begin at ``entry_id`` and at the index ``first``."""

    ledger_id: int
    entry_id: int
    first: int
    length: int


class NotLoadedError(ServiceNotReadyError):
    """The place is among older ledgers that are not in memory. Load it and try again."""


class Run(NamedTuple):
    """A piece whose ledgers are not in memory, and the index of its first entry."""

    ref: PieceRef
    first: int


class Chain(ABC):
    """The entries of a topic by index, as a cursor or a reader sees them."""

    end: int  # the index after the newest confirmed entry: nothing at or after it is shown to anyone (I3)
    count: TopicCount | None = None  # when the topic was opened: which entries carry a number; None: not those of here

    @property
    @abstractmethod
    def first(self) -> int:
        """Return the index of the oldest entry kept; it equals ``end`` when there is none."""

    @abstractmethod
    async def load(self, position: Position) -> None:
        """Bring the ledgers from ``position`` on into memory, with the entry before it; what is there already costs
        nothing.

        Raises:
            ServiceNotReadyError: the chain is being trimmed there; try again.
            MetadataError: a piece cannot be read now.
        """

    @abstractmethod
    async def load_index(self, index: int) -> None:
        """Bring the ledgers from ``index`` on into memory, with the entry before it. Raises as ``load`` does."""

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

    def find_chunk(self, position: Position, bits: int) -> Iterator[tuple[int, int]]:
        """Yield, as indexes with bits, the entries of one ledger that ``bits`` names from ``position`` on, as far as
        they are kept."""
        index = self.find(position)
        if index is not None:
            yield index, bits

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
    """The topic's own chain: its ledgers in publish order.

    Args:
        pieces: the runs of ledgers before those that will be appended, oldest first.
        read_piece: reads the node of a piece by its number.
    """

    def __init__(self, pieces: Iterable[PieceRef] = (), read_piece: ReadPiece | None = None) -> None:
        self._ledger_ids = array("q")
        self._firsts = array("q")  # index of entry 0 of each ledger; grows, and never exceeds ``end``
        self._closed_ms = array("q")  # when each was closed; 0 for those that were opened since the topic was
        self._read_piece = read_piece
        self._older = _runs(0, pieces)  # not in memory, oldest first; they end where ``_firsts`` begins
        self.end = sum(run.ref.entries for run in self._older)  # only grows (I2)

    @property
    @override
    def first(self) -> int:
        if self._older:
            return self._older[0].first
        return self._firsts[0] if self._firsts else self.end

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        return tuple(self._ledger_ids)

    @property
    def loaded_from(self) -> int:
        """Return the index from which on all ledgers are in memory."""
        return self._firsts[0] if self._firsts else self.end

    @property
    def older(self) -> list[Run]:
        """Return the runs of ledgers that are not in memory, oldest first."""
        return self._older

    @property
    @override
    def last_ledger_id(self) -> int:
        return self._ledger_ids[-1]

    @override
    async def load(self, position: Position) -> None:
        while self._older and self._older[-1].ref.last_id >= position.ledger_id:
            await self.expand(self._older[-1])
        await self.load_index(self.at_or_after(position))

    @override
    async def load_index(self, index: int) -> None:
        while self._older and index <= self.loaded_from:
            await self.expand(self._older[-1])

    async def expand(self, run: Run) -> None:
        """Replace a run by the smaller ones that it is made of. If it has ledgers, it has to be the newest run, and
        they come into memory. Raises as ``load`` does."""
        assert self._read_piece is not None, "a chain with pieces can read them"
        piece = await self._read_piece(run.ref.number)
        try:
            at = self._older.index(run)
        except ValueError:
            return  # meanwhile loaded by another caller, or trimmed
        if run.ref.level > 1:
            self._older[at : at + 1] = _runs(run.first, parts_of(run.ref, piece))
            return
        assert at == len(self._older) - 1, "ledgers in memory are adjacent"  # I12
        rows = rows_of(run.ref, piece)
        assert sum(row.entries for row in rows) == run.ref.entries, "a piece agrees with the record"  # I12
        firsts, index = array("q"), run.first
        for row in rows:
            firsts.append(index)
            index += row.entries
        assert index == self.loaded_from, "the chain is unbroken"  # I12
        self._ledger_ids[:0] = array("q", [row.ledger_id for row in rows])  # in place: a million are moved in 1 ms
        self._firsts[:0] = firsts
        self._closed_ms[:0] = array("q", [row.closed_ms for row in rows])
        self._older.pop()

    def follow(self, pieces: Sequence[PieceRef]) -> None:
        """Replace the oldest run by the smaller ones that the record names in its place: trimming expands the oldest
        piece of the record and deletes its node."""
        if not self._older or self._older[0].ref.level == 1:
            return
        ref, first = self._older[0]
        parts = [part for part in pieces if ref.first_id <= part.first_id and part.last_id <= ref.last_id]
        if sum(part.ledgers for part in parts) == ref.ledgers:
            self._older[:1] = _runs(first, parts)

    def append(self, ledger_id: int, entries: int = 0, closed_ms: int = 0) -> None:
        """Add a ledger after all others, with the entries that it holds already."""
        assert entries >= 0, "a ledger holds no negative number of entries"
        assert not self._ledger_ids or ledger_id > self._ledger_ids[-1], "ledger ids of a topic grow"  # I12
        self._ledger_ids.append(ledger_id)
        self._firsts.append(self.end)
        self._closed_ms.append(closed_ms)
        self.end += entries

    def confirm(self, entry_id: int) -> Position:
        """Confirm the last ledger up to ``entry_id`` and return the position of that entry."""
        end = self._firsts[-1] + entry_id + 1
        assert end >= self.end, "the confirmed end only grows"  # I2
        self.end = end
        return new_position((self._ledger_ids[-1], entry_id))

    def drop_before(self, ledger_id: int, ledgers: int, entries: int) -> None:
        """Remove the oldest ledgers. The last ledger is never removed (I14).

        Args:
            ledger_id: they are those before this id.
            ledgers, entries: how many they are, and how many entries they have.
        """
        while self._older and self._older[0].ref.last_id < ledger_id:
            ref = self._older.pop(0).ref
            ledgers, entries = ledgers - ref.ledgers, entries - ref.entries
        if self._older:
            ref, first = self._older[0]
            if entries:
                left = ref._replace(first_id=ledger_id, ledgers=ref.ledgers - ledgers, entries=ref.entries - entries)
                assert left.ledgers > 0, "the ledger that stays is in the run"  # I12
                self._older[0] = Run(left, first + entries)
            return
        count = bisect_left(self._ledger_ids, ledger_id)
        assert count < len(self._ledger_ids), "the ledger that takes entries stays"  # I14
        del self._ledger_ids[:count]
        del self._firsts[:count]
        del self._closed_ms[:count]
        assert self._firsts[0] <= self.end, "the head that is left begins within the chain"

    def closed_ms(self, index: int) -> int:
        """Return when the ledger of an entry was closed; 0 if it was open when the topic was opened, or is newer. Of a
        run that is not in memory, only the first entry has an answer."""
        if index < self.loaded_from:
            return self._run_at(index).ref.closed_ms
        return self._closed_ms[bisect_right(self._firsts, index) - 1]

    def entries_in(self, ledger_id: int) -> int:
        """Return how many confirmed entries a ledger in memory holds."""
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
        """Return the index of an entry that is kept and confirmed, else None; None also for one in older ledgers that
        are not in memory: a caller that needs one loads it first, and others do not go back so far."""
        at = bisect_left(self._ledger_ids, position.ledger_id)
        if at == len(self._ledger_ids) or self._ledger_ids[at] != position.ledger_id or position.entry_id < 0:
            return None
        index = self._firsts[at] + position.entry_id
        end = self.end if at + 1 == len(self._firsts) else self._end_of(at)
        return index if index < end else None

    @override
    def at_or_after(self, position: Position) -> int:
        if self._older and position.ledger_id <= self._older[-1].ref.last_id:
            run = self._older[0]
            if position.ledger_id < run.ref.first_id or position <= (run.ref.first_id, 0):
                return run.first
            raise NotLoadedError(f"{position} is in older ledgers that are not in memory")
        at = bisect_left(self._ledger_ids, position.ledger_id)
        if at == len(self._ledger_ids):
            return self.end
        if self._ledger_ids[at] != position.ledger_id:
            return self._firsts[at]
        return min(self._firsts[at] + max(position.entry_id, 0), self._end_of(at))

    def after_or_before(self, position: Position) -> int:
        """Return ``after(position)``; for older ledgers that are not in memory, the first index of their run."""
        if self._older and position.ledger_id <= self._older[-1].ref.last_id:
            at = bisect_right(self._older, position.ledger_id, key=lambda run: run.ref.first_id) - 1
            return self._older[max(at, 0)].first
        return self.after(position)

    @override
    def position_at(self, index: int) -> Position:
        first = self._firsts[-1]
        if first <= index <= self.end:  # as most are
            return new_position((self._ledger_ids[-1], index - first))
        assert self.first <= index < first, "the index is in the chain"
        if index < self.loaded_from:
            return Position(self._run_at(index).ref.first_id, 0)
        at = bisect_right(self._firsts, index) - 1
        return Position(self._ledger_ids[at], index - self._firsts[at])

    @override
    def position_before(self, index: int) -> Position:
        if index <= self.first:
            return Position(self._older[0].ref.first_id if self._older else self._ledger_ids[0], -1)
        return self.position_at(index - 1)

    @override
    def spans(self, first: int, count: int) -> Iterator[Span]:
        index, stop = max(first, self.first), min(first + count, self.end)
        if index < min(stop, self.loaded_from):  # one entry, for a search
            yield Span(self._run_at(index).ref.first_id, 0, index, 1)
            return
        while index < stop:
            at = bisect_right(self._firsts, index) - 1
            upto = min(stop, self._end_of(at))
            yield Span(self._ledger_ids[at], index - self._firsts[at], index, upto - index)
            index = upto

    def _run_at(self, index: int) -> Run:
        """Return the run that begins at ``index``. Other places of a run are not known."""
        at = bisect_right(self._older, index, key=lambda run: run.first) - 1
        run = self._older[at]
        if run.first != index:
            raise NotLoadedError(f"entry {index} is in older ledgers that are not in memory")
        return run

    def _end_of(self, at: int) -> int:
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else self.end


def _runs(first: int, refs: Iterable[PieceRef]) -> list[Run]:
    runs = []
    for ref in refs:
        runs.append(Run(ref, first))
        first += ref.entries
    return runs
