"""The disk of a simulated bookie: an index, and the journal since the mark.

Every other entry is a large one, which is written once: the index points to its place in the journal, and that place is
not used again while it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Copy:
    """One stored replica of an entry."""

    lac: int
    length: int
    payload: bytes
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """One journal record: an entry, or a fence, or an explicit LAC."""

    ledger_id: int
    entry_id: int = -1
    copy: Copy | None = None
    is_fence: bool = False
    lac: int = -1


def is_large(record: Record) -> bool:
    """Whether the entry of a record is written once."""
    return (record.ledger_id + record.entry_id) % 2 == 0


@dataclass
class Image:
    """An index and a journal. A running bookie has another one in memory, with what is not synced yet."""

    index: dict[tuple[int, int], Copy] = field(default_factory=dict)
    fences: set[int] = field(default_factory=set)
    lacs: dict[int, int] = field(default_factory=dict)
    limbo: set[int] = field(default_factory=set)
    journal: list[Record] = field(default_factory=list)
    mark: int = 0  # how many records were ever trimmed off the journal
    journaled: dict[tuple[int, int], list[Copy]] = field(default_factory=dict)  # the entries in ``journal``
    kept: dict[tuple[int, int], int] = field(default_factory=dict)  # places that the index points to, from 0 on
    places: dict[int, Record] = field(default_factory=dict)  # what is at places of large entries

    def absorb(self, records: Iterable[Record]) -> None:
        """Put records into the index."""
        for record in records:
            if record.copy is not None:
                key = (record.ledger_id, record.entry_id)
                old = self.index.get(key)
                if old is None or old.is_damaged:
                    self.index[key] = record.copy
                    self.kept.pop(key, None)
            elif record.is_fence:
                self.fences.add(record.ledger_id)
            else:
                self.lacs[record.ledger_id] = max(record.lac, self.lacs.get(record.ledger_id, -1))

    def append(self, records: Iterable[Record]) -> None:
        for record in records:
            self.journal.append(record)
            if record.copy is not None:
                self.journaled.setdefault((record.ledger_id, record.entry_id), []).append(record.copy)

    def absorb_journal(self, records: Sequence[Record], first: int) -> None:
        """Put records of the journal into the index, which points to the large ones among them.

        Args:
            first: place of the first record in the journal.
        """
        for place, record in enumerate(records, first):
            key = (record.ledger_id, record.entry_id)
            old = self.index.get(key)
            self.absorb([record])
            if record.copy is not None and is_large(record) and (old is None or old.is_damaged):
                self.kept[key] = place
                self.places[place] = record

    def recycle(self, mark: int) -> None:
        """Use the places before ``mark`` again that the index does not point to."""
        pointed_to = set(self.kept.values())
        for place in [place for place in self.places if place < mark and place not in pointed_to]:
            del self.places[place]

    def read_places(self) -> None:
        """Read the large entries from where the index points to: one that is not there is damaged."""
        for key, place in self.kept.items():
            record, copy = self.places.get(place), self.index[key]
            is_there = record is not None and (record.ledger_id, record.entry_id) == key
            if not is_there and not copy.is_damaged:
                self.index[key] = replace(copy, is_damaged=True)

    def move_mark(self, mark: int) -> None:
        """Trim the journal up to ``mark``, which never goes back."""
        if mark <= self.mark:
            return
        for record in self.journal[: mark - self.mark]:
            if record.copy is not None:
                copies = self.journaled[record.ledger_id, record.entry_id]
                copies.pop(0)
                if not copies:
                    del self.journaled[record.ledger_id, record.entry_id]
        self.journal = self.journal[mark - self.mark :]
        self.mark = mark
        self.recycle(mark)
        self.read_places()

    def abandon_journal(self) -> None:
        """Lose what was not flushed."""
        self.mark += len(self.journal)
        self.journal.clear()
        self.journaled.clear()

    def replayed(self) -> Image:
        """Return the image that a bookie has in memory after a start on this disk."""
        memory = Image(dict(self.index), set(self.fences), dict(self.lacs), set(self.limbo))
        memory.absorb(self.journal)
        return memory

    def drop(self, ledger_ids: Iterable[int]) -> None:
        """Drop ledgers, but not their fences."""  # I4
        gone = set(ledger_ids)
        for key in [key for key in self.index if key[0] in gone]:
            del self.index[key]
            self.kept.pop(key, None)
        for ledger_id in gone:
            self.lacs.pop(ledger_id, None)
            self.limbo.discard(ledger_id)

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        """Whether an undamaged copy is here, which would be served after a crash."""
        copy = self.index.get((ledger_id, entry_id))
        return (copy is not None and not copy.is_damaged) or (ledger_id, entry_id) in self.journaled

    def copy_of(self, ledger_id: int, entry_id: int) -> Copy | None:
        """Return the undamaged copy of an entry."""
        copy = self.index.get((ledger_id, entry_id))
        if copy is not None and not copy.is_damaged:
            return copy
        journaled = self.journaled.get((ledger_id, entry_id))
        return journaled[0] if journaled else None

    def ledgers(self) -> set[int]:
        """Return the ledgers with entries in the index."""
        return {ledger_id for ledger_id, _ in self.index}
