"""Where the entries of ledgers are, in memory: 14 bytes for a ledger on three bookies (pure).

Ledgers are grouped by the directory of metadata that they are in (10,000 ids), and in it by their kind, which is all
that they have in common. A table has one row for each ledger of a kind: two bytes of its id and four for each bookie.
So a search for a bookie is a search in bytes, and a change moves at most two tables of a directory.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from heliograph.metadata.model import LedgerMetadata, Segment
from heliograph.metadata.paths import LEDGERS_PER_DIRECTORY

NUMBER_BYTES = 4  # of a bookie
ROWS_PER_STEP = 1_000  # that an iterator yields at once, so that an event loop can turn in between  # I24


@dataclass(frozen=True, slots=True)
class LedgerPlacement:
    """Where the entries of a ledger are: the bookies of each segment that may hold entries."""

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    is_closed: bool
    held: tuple[tuple[str, ...], ...]

    @property
    def bookies(self) -> set[str]:
        return {bookie for bookies in self.held for bookie in bookies}


def may_hold_entries(ledger: LedgerMetadata, segment: Segment) -> bool:
    return not ledger.is_closed or segment.first_entry_id <= ledger.last_entry_id


def placement_of(ledger: LedgerMetadata) -> LedgerPlacement:
    held = tuple(each.bookies for each in ledger.segments if may_hold_entries(ledger, each))
    return LedgerPlacement(
        ledger.ledger_id, ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum, ledger.is_closed, held
    )


@dataclass(frozen=True, slots=True)
class _RowKind:
    """The kind of the ledgers of one table. ``compared_in`` is the turn of comparisons that they were in."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    is_closed: bool
    segments: int
    compared_in: int

    @property
    def width(self) -> int:
        return self.ensemble_size * self.segments * NUMBER_BYTES


class _Table:
    """The ledgers of one kind in one directory. ``lows`` ascend; row n of ``names`` belongs to the n-th of them."""

    __slots__ = ("lows", "names")

    def __init__(self) -> None:
        self.lows = array("H")
        self.names = bytearray()


_Tables = dict[_RowKind, _Table]


class PlacementIndex:
    """The placements of ledgers by their ids, and the ledgers on a bookie."""

    def __init__(self) -> None:
        self._directories: dict[int, _Tables] = {}
        self._order: list[int] = []  # the keys of _directories, ascending
        self._numbers: dict[str, int] = {}  # of bookies, from 1; at most one for each name that was ever seen (I15)
        self._names: list[str] = [""]
        self._mentions: list[int] = [0]  # by number: rows and segments that name the bookie
        self._kinds: Counter[_RowKind] = Counter()  # ledgers of each
        self._turn = 1  # of comparisons

    def __len__(self) -> int:
        return self._kinds.total()

    def get(self, ledger_id: int) -> LedgerPlacement | None:
        directory, low = divmod(ledger_id, LEDGERS_PER_DIRECTORY)
        found = _find(self._directories.get(directory, {}), low)
        return None if found is None else self._placement(directory, *found)

    def put(self, placement: LedgerPlacement) -> LedgerPlacement | None:
        """Add a ledger, or change it. Return its previous placement. A closed ledger stays compared."""
        directory, low = divmod(placement.ledger_id, LEDGERS_PER_DIRECTORY)
        if directory not in self._directories:
            self._directories[directory] = {}
            insort(self._order, directory)
        tables = self._directories[directory]
        numbers = [self._number(name) for bookies in placement.held for name in bookies]
        packed = _packing(len(numbers)).pack(*numbers)
        found, compared_in, before = _find(tables, low), 0, None
        if found is not None:
            kind, row = found
            before = self._placement(directory, kind, row)
            if before == placement:
                return before
            compared_in = kind.compared_in if placement.is_closed and kind.is_closed else 0
            self._take(tables, kind, row)
        kind = _RowKind(
            placement.ensemble_size, placement.write_quorum, placement.ack_quorum, placement.is_closed,
            len(placement.held), compared_in,
        )  # fmt: skip
        self._insert(tables, kind, low, packed)
        for number in numbers:
            self._mentions[number] += 1
        return before

    def remove(self, ledger_id: int) -> LedgerPlacement | None:
        """Forget a ledger. Return its placement."""
        directory, low = divmod(ledger_id, LEDGERS_PER_DIRECTORY)
        tables = self._directories.get(directory, {})
        found = _find(tables, low)
        if found is None:
            return None
        before = self._placement(directory, *found)
        self._take(tables, *found)
        if not tables:
            del self._directories[directory]
            self._order.remove(directory)
        return before

    def ids_from(self, first_id: int, end_id: int) -> list[int]:
        """Return the ids of one directory or several, from ``first_id`` to before ``end_id``, ascending."""
        found: list[int] = []
        for directory in self._directories_from(first_id // LEDGERS_PER_DIRECTORY):
            base = directory * LEDGERS_PER_DIRECTORY
            if base >= end_id:
                break
            for table in self._directories[directory].values():
                found += [base + low for low in table.lows if first_id <= base + low < end_id]
        return sorted(found)

    @property
    def named(self) -> set[str]:
        """The bookies, and vacancies, that hold entries of a ledger, or may."""
        return {name for name, number in self._numbers.items() if self._mentions[number]}

    @property
    def ensemble_size_max(self) -> int:
        return max((kind.ensemble_size for kind, count in self._kinds.items() if count), default=0)

    def on(self, bookies: Collection[str]) -> Iterator[list[LedgerPlacement]]:
        """Yield the ledgers with one of these bookies, by their ids and some at once. No call may change them.

        Where a table that was searched has none of them, no ledgers are yielded, so that an event loop can turn (I24).
        """
        for directory, kind, rows in self._rows_on(bookies):
            for first in range(0, len(rows) or 1, ROWS_PER_STEP):
                yield [self._placement(directory, kind, row) for row in rows[first : first + ROWS_PER_STEP]]

    def tally(self, bookie: str) -> Iterator[tuple[int, int]]:
        """Yield how many ledgers are on a bookie, and how many of them are not closed: numbers that are to be added."""
        for _, kind, rows in self._rows_on([bookie]):
            yield len(rows), 0 if kind.is_closed else len(rows)

    def uncompared(self, after_id: int) -> Iterator[LedgerPlacement]:
        """Yield the closed ledgers that were not compared in this turn, those beyond ``after_id`` first."""
        start = (after_id + 1) // LEDGERS_PER_DIRECTORY
        later = self._directories_from(start)
        earlier = [each for each in self._order if each <= start]
        for directories, is_later in ((later, True), (earlier, False)):
            for directory in directories:
                base = directory * LEDGERS_PER_DIRECTORY
                tables = self._directories[directory]
                due = [kind for kind in tables if kind.is_closed and kind.compared_in != self._turn]
                lows = sorted(
                    (low, row, at) for at, kind in enumerate(due) for row, low in enumerate(tables[kind].lows)
                )
                for low, row, at in lows:
                    if (base + low > after_id) is is_later:
                        yield self._placement(directory, due[at], row)

    def note_compared(self, ledger_id: int) -> None:
        """Note that a ledger was compared in this turn, if it is there and closed."""
        directory, low = divmod(ledger_id, LEDGERS_PER_DIRECTORY)
        tables = self._directories.get(directory, {})
        found = _find(tables, low)
        if found is not None and found[0].is_closed:
            kind, row = found
            packed = bytes(tables[kind].names[row * kind.width : (row + 1) * kind.width])
            self._take(tables, kind, row)
            self._insert(tables, replace(kind, compared_in=self._turn), low, packed)
            for number in _packing(len(packed) // NUMBER_BYTES).unpack(packed):
                self._mentions[number] += 1

    def begin_turn(self) -> None:
        """Have all closed ledgers compared again."""
        self._turn += 1

    def _rows_on(self, bookies: Iterable[str]) -> Iterator[tuple[int, _RowKind, list[int]]]:
        numbers = [self._numbers[name] for name in bookies if name in self._numbers]
        wanted = [_packing(1).pack(number) for number in numbers if self._mentions[number]]
        for directory in self._order if wanted else ():
            for kind, table in self._directories[directory].items():
                yield directory, kind, sorted({row for each in wanted for row in _rows_with(table, kind.width, each)})

    def _directories_from(self, first: int) -> list[int]:
        return self._order[bisect_left(self._order, first) :]

    def _placement(self, directory: int, kind: _RowKind, row: int) -> LedgerPlacement:
        table, size = self._directories[directory][kind], kind.ensemble_size
        numbers = _packing(size * kind.segments).unpack_from(table.names, row * kind.width)
        names = [self._names[number] for number in numbers]
        held = tuple(tuple(names[first : first + size]) for first in range(0, len(names), size))
        ledger_id = directory * LEDGERS_PER_DIRECTORY + table.lows[row]
        return LedgerPlacement(ledger_id, size, kind.write_quorum, kind.ack_quorum, kind.is_closed, held)

    def _insert(self, tables: _Tables, kind: _RowKind, low: int, packed: bytes) -> None:
        assert len(packed) == kind.width, "a row has a number for each bookie of each segment"
        table = tables.setdefault(kind, _Table())
        row = bisect_left(table.lows, low)
        table.lows.insert(row, low)
        table.names[row * kind.width : row * kind.width] = packed
        self._kinds[kind] += 1

    def _take(self, tables: _Tables, kind: _RowKind, row: int) -> None:
        table = tables[kind]
        for number in _packing(kind.ensemble_size * kind.segments).unpack_from(table.names, row * kind.width):
            self._mentions[number] -= 1
            assert self._mentions[number] >= 0, "what is taken away was counted"
        del table.lows[row]
        del table.names[row * kind.width : (row + 1) * kind.width]
        self._kinds[kind] -= 1
        if not table.lows:
            del tables[kind]

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
            self._mentions.append(0)
        return number


def _find(tables: _Tables, low: int) -> tuple[_RowKind, int] | None:
    for kind, table in tables.items():
        row = bisect_left(table.lows, low)
        if row < len(table.lows) and table.lows[row] == low:
            return kind, row
    return None


def _rows_with(table: _Table, width: int, wanted: bytes) -> Iterator[int]:
    at = table.names.find(wanted)
    while at >= 0:
        if at % NUMBER_BYTES:
            at += 1  # the end of one number and the beginning of the next
        else:
            yield at // width
            at = (at // width + 1) * width
        at = table.names.find(wanted, at)


@cache  # one for each number of bookies in a ledger
def _packing(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")
