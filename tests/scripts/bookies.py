"""The world that scripts play in: bookies, a metadata store and a chooser, all in memory and without surprises."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from actors.ledger.effects import LedgerEntry, ReadBatch, Reply, SendAdd
from metadata.model import LedgerMetadata, Versioned


@dataclass
class ScriptBookie:
    """One ledger's copies on one bookie, with the rules that every bookie keeps."""

    bookie_id: str
    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    is_fenced: bool = False
    is_up: bool = True
    is_readonly: bool = False
    in_limbo: bool = False  # after a storage loss: its "no" is no answer (I6)
    explicit_lac: int = -1

    @property
    def last_add_confirmed(self) -> int:
        """The highest LAC that it knows."""
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
        """One entry; a fencing read fences before it answers, whatever the answer is (I4)."""
        self.is_fenced = self.is_fenced or fence
        if entry_id in self.damaged:
            return Reply.DAMAGED, None
        entry = self.entries.get(entry_id)
        if entry is not None:
            return Reply.OK, entry
        return (Reply.UNKNOWN if self.in_limbo else Reply.ABSENT), None

    def read_lac(self, fence: bool) -> tuple[Reply, int, LedgerEntry | None]:
        """LAC and last entry."""
        self.is_fenced = self.is_fenced or fence
        last = max(self.entries, default=None)
        if last is None and self.explicit_lac < 0:
            return (Reply.UNKNOWN if self.in_limbo else Reply.ABSENT), -1, None
        return Reply.OK, self.last_add_confirmed, None if last is None else self.entries[last]

    def read_batch(self, effect: ReadBatch) -> tuple[Reply, list[LedgerEntry]]:
        """Consecutive entries."""
        found: list[LedgerEntry] = []
        for entry_id in range(effect.first_entry_id, effect.last_entry_id + 1):
            reply, entry = self.read(entry_id, False)
            if entry is None:
                return (Reply.OK, found) if found else (reply, [])
            found.append(entry)
        return Reply.OK, found

    def runs(self) -> tuple[Reply, tuple[tuple[int, int], ...]]:
        """What it stores undamaged, one run for each entry."""
        return Reply.OK, tuple((n, n) for n in sorted(self.entries) if n not in self.damaged)


class ScriptStore:
    """The ledger's record and its version."""

    def __init__(self, record: LedgerMetadata) -> None:
        self.record: LedgerMetadata | None = record
        self.version = 0

    @property
    def versioned(self) -> Versioned[LedgerMetadata]:
        """The record as it stands."""
        assert self.record is not None, "the script deleted the ledger"
        return Versioned(self.record, self.version)

    def write(self, record: LedgerMetadata, version: int) -> tuple[str, int]:
        """Compare-and-set."""
        if self.record is None:
            return "missing", -1
        if version != self.version:
            return "conflict", -1
        self.record, self.version = record, version + 1
        return "written", self.version


class ScriptChooser:
    """Takes the first registered bookies, in the order of the ``cluster`` command."""

    def __init__(self) -> None:
        self.registered: list[str] = []

    def choose_replacements(
        self, ensemble: Sequence[str], failed: Collection[int], now: int, excluded: Collection[str] = ()
    ) -> dict[int, str]:
        """See actors.ledger.ensemble.Chooser."""
        spares = [bookie_id for bookie_id in self.registered if bookie_id not in {*ensemble, *excluded}]
        return dict(zip(sorted(failed), spares, strict=False))

    def is_available(self, bookie_id: str) -> bool:
        """See actors.ledger.ensemble.Chooser."""
        return bookie_id in self.registered

    def note_failure(self, bookie_id: str, now: int) -> None:
        """A script decides by itself who is registered."""


def entry_of(effect: SendAdd) -> LedgerEntry:
    """What a bookie stores of an add."""
    return LedgerEntry(effect.entry_id, bytes(effect.payload), effect.length, effect.last_add_confirmed)
