"""Bookies, a metadata store and a chooser for scripts, in memory and without faults of their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from heliograph.actors.ledger.effects import LedgerEntry, ReadBatch, Reply, SendAdd
from heliograph.actors.ledger.placement.ensemble import Chooser
from heliograph.metadata.model import LedgerMetadata, Versioned


@dataclass
class ScriptBookie:
    """The copies of one ledger on one bookie, with the rules of every bookie."""

    bookie_id: str
    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    is_fenced: bool = False
    is_up: bool = True
    is_readonly: bool = False
    in_limbo: bool = False  # after a loss of storage: its "no" proves nothing (I6)
    explicit_lac: int = -1

    @property
    def last_add_confirmed(self) -> int:
        """Return the highest LAC that the bookie knows."""
        return max([self.explicit_lac, *(entry.last_add_confirmed for entry in self.entries.values())])

    def add(self, entry: LedgerEntry, recovery: bool) -> Reply:
        """Store an entry."""
        if self.is_fenced and not recovery:
            return Reply.FENCED
        if self.is_readonly and not recovery:
            return Reply.READ_ONLY
        self.entries[entry.entry_id] = entry
        self.damaged.discard(entry.entry_id)
        return Reply.OK

    def read(self, entry_id: int, fence: bool) -> tuple[Reply, LedgerEntry | None]:
        """Return one entry. A fencing read fences before any answer (I4)."""
        self.is_fenced = self.is_fenced or fence
        if entry_id in self.damaged:
            return Reply.DAMAGED, None
        entry = self.entries.get(entry_id)
        if entry is not None:
            return Reply.OK, entry
        return (Reply.UNKNOWN if self.in_limbo else Reply.ABSENT), None

    def read_lac(self, fence: bool) -> tuple[Reply, int, LedgerEntry | None]:
        """Return the LAC and the last entry."""
        self.is_fenced = self.is_fenced or fence
        last = max(self.entries, default=None)
        if last is None and self.explicit_lac < 0:
            return (Reply.UNKNOWN if self.in_limbo else Reply.ABSENT), -1, None
        return Reply.OK, self.last_add_confirmed, None if last is None else self.entries[last]

    def read_batch(self, effect: ReadBatch) -> tuple[Reply, list[LedgerEntry]]:
        """Return consecutive entries."""
        found: list[LedgerEntry] = []
        for entry_id in range(effect.first_entry_id, effect.last_entry_id + 1):
            reply, entry = self.read(entry_id, False)
            if entry is None:
                return (Reply.OK, found) if found else (reply, [])
            found.append(entry)
        return Reply.OK, found

    def runs(self) -> tuple[Reply, tuple[tuple[int, int], ...]]:
        """Return the undamaged entries that it stores, one run for each."""
        return Reply.OK, tuple((n, n) for n in sorted(self.entries) if n not in self.damaged)


class ScriptStore:
    """The ledger's record and its version."""

    def __init__(self, record: LedgerMetadata) -> None:
        self.record: LedgerMetadata | None = record
        self.version = 0

    @property
    def versioned(self) -> Versioned[LedgerMetadata]:
        """Return the record as it is now."""
        assert self.record is not None, "the script deleted the ledger"
        return Versioned(self.record, self.version)

    def write(self, record: LedgerMetadata, version: int) -> tuple[str, int]:
        """Compare-and-set the record."""
        if self.record is None:
            return "missing", -1
        if version != self.version:
            return "conflict", -1
        self.record, self.version = record, version + 1
        return "written", self.version


class ScriptChooser(Chooser):
    """A chooser that takes the first registered bookies, in the order of the ``cluster`` command."""

    def __init__(self) -> None:
        self.registered: list[str] = []

    @override
    def choose_replacements(
        self, ensemble: Sequence[str], failed: Collection[int], now: int, excluded: Collection[str] = ()
    ) -> dict[int, str]:
        spares = [bookie_id for bookie_id in self.registered if bookie_id not in {*ensemble, *excluded}]
        return dict(zip(sorted(failed), spares, strict=False))

    @override
    def is_available(self, bookie_id: str) -> bool:
        return bookie_id in self.registered

    @override
    def note_failure(self, bookie_id: str, now: int) -> None:
        """Do nothing: the script decides which bookies are registered."""


def entry_of(effect: SendAdd) -> LedgerEntry:
    """Return the entry that a bookie stores of an add."""
    return LedgerEntry(effect.entry_id, bytes(effect.payload), effect.length, effect.last_add_confirmed)
