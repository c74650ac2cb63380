"""The ledgers of a bookie, in memory. Changes go to the index with the next checkpoint.

A ledger takes about 400 bytes. Of a ledger that metadata has deleted, only its id stays, as part of a span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from heliograph.actors.bookie.store.fencing import Fence
from heliograph.actors.bookie.store.index import LedgerRecord

NOT_LISTED = -1  # no zxid


class StoredLedger:
    """One ledger. ``last_add_confirmed`` is the highest LAC known, ``last_entry_id`` the greatest id stored."""

    __slots__ = ("fence", "is_limbo", "last_add_confirmed", "last_entry_id", "ledger_id", "listed_at")

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.fence = Fence()
        self.is_limbo = False
        self.last_add_confirmed = -1
        self.last_entry_id = -1
        self.listed_at = NOT_LISTED  # the pzxid of its directory at or after which metadata was seen to have it

    def raise_lac(self, last_add_confirmed: int) -> bool:
        """Raise the LAC; return whether it grew."""
        if last_add_confirmed <= self.last_add_confirmed:
            return False
        self.last_add_confirmed = last_add_confirmed  # I2: only grows
        return True

    def record(self) -> LedgerRecord:
        """Return the record for the index. A fence that is still being written counts, because it never clears (I4)."""
        return LedgerRecord(
            self.ledger_id, not self.fence.is_clear, self.is_limbo, False, self.last_add_confirmed, self.last_entry_id
        )


class DeletedLedgers:
    """Ids of deleted ledgers, which refuse every add. Kept as spans: ids ascend and are never used again."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, ledger_id: int) -> None:
        """Add an id. Idempotent."""
        at = bisect_right(self._firsts, ledger_id)
        if at and ledger_id <= self._lasts[at - 1]:
            return
        joins_left = at > 0 and self._lasts[at - 1] == ledger_id - 1
        joins_right = at < len(self._firsts) and self._firsts[at] == ledger_id + 1
        if joins_left and joins_right:
            self._lasts[at - 1] = self._lasts.pop(at)
            del self._firsts[at]
        elif joins_left:
            self._lasts[at - 1] = ledger_id
        elif joins_right:
            self._firsts[at] = ledger_id
        else:
            self._firsts.insert(at, ledger_id)
            self._lasts.insert(at, ledger_id)

    def __contains__(self, ledger_id: int) -> bool:
        at = bisect_right(self._firsts, ledger_id)
        return at > 0 and ledger_id <= self._lasts[at - 1]

    def spans(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))


class LedgerTable:
    """All ledgers of a bookie. Used on the event loop, and by the start before the loop runs.

    Attributes:
        by_id: all ledgers that are known, for lookups; ``get`` and ``make`` know about lost storage as well.
        changed: ids of the ledgers whose records the next checkpoint writes. Callers add to it.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, StoredLedger] = {}
        self.changed: set[int] = set()
        self._watched: set[int] = set()
        self._undeleted: set[int] = set()  # deleted ledgers whose deletion is not in the index yet
        self._limbo_seen = -1
        self.deleted = DeletedLedgers()
        self.doubtful_to = 0  # ledgers up to this id may have had a fence that was lost with a disk

    def __len__(self) -> int:
        return len(self.by_id)

    def load(self, records: Iterable[LedgerRecord]) -> None:
        for record in records:
            if record.is_deleted:
                self.deleted.add(record.ledger_id)
                continue
            state = self.by_id[record.ledger_id] = StoredLedger(record.ledger_id)
            state.is_limbo = record.is_limbo
            state.last_add_confirmed = record.last_add_confirmed
            state.last_entry_id = record.last_entry_id
            if record.is_fenced:
                state.fence.restore()  # I4

    def get(self, ledger_id: int) -> StoredLedger | None:
        """Return the ledger if it is known. One from before a loss of storage counts as known, fenced and in limbo."""
        state = self.by_id.get(ledger_id)
        if state is None and 0 < ledger_id <= self.doubtful_to and ledger_id not in self.deleted:
            return self.make(ledger_id)
        return state

    def make(self, ledger_id: int) -> StoredLedger:
        """Return the ledger; add it if it is not known yet."""
        state = self.by_id.get(ledger_id)
        if state is None:
            assert ledger_id not in self.deleted, "a deleted ledger is never added again"  # I4
            state = self.by_id[ledger_id] = StoredLedger(ledger_id)
            if 0 < ledger_id <= self.doubtful_to:
                state.is_limbo = True  # I6
                state.fence.restore()  # I4
        return state

    def ids(self) -> list[int]:
        return list(self.by_id)

    def states(self) -> Iterable[StoredLedger]:
        return self.by_id.values()

    def next_in_limbo(self, count: int) -> list[int]:
        """Return up to ``count`` ledgers in limbo, in turn."""
        waiting = sorted(ledger_id for ledger_id, state in self.by_id.items() if state.is_limbo)
        later = [ledger_id for ledger_id in waiting if ledger_id > self._limbo_seen]
        chosen = (later or waiting)[:count]
        self._limbo_seen = chosen[-1] if chosen else -1
        return chosen

    def in_limbo(self) -> int:
        return sum(state.is_limbo for state in self.by_id.values())

    def leave_limbo(self, ledger_id: int) -> None:
        """Take a ledger out of limbo: all its entries that belong here are here, so "no" may be answered again."""
        state = self.by_id.get(ledger_id)
        if state is not None:  # it was not deleted meanwhile
            state.is_limbo = False
            self.changed.add(ledger_id)

    def watch(self, ledger_id: int) -> None:
        """Note from now on whether the ledger changes."""
        self._watched.add(ledger_id)

    def is_unchanged(self, ledger_id: int) -> bool:
        """Return whether a watched ledger has not changed since ``watch``."""
        return ledger_id in self._watched and ledger_id not in self.changed

    @property
    def has_changes(self) -> bool:
        return bool(self.changed or self._undeleted)

    def take_changed(self) -> list[LedgerRecord]:
        """Return the records for a checkpoint that starts now."""
        changed, self.changed = self.changed, set()
        self._watched -= changed
        return [self.by_id[ledger_id].record() for ledger_id in sorted(changed) if ledger_id in self.by_id]

    def take_dropped(self) -> frozenset[int]:
        """Return the deleted ledgers that a checkpoint that starts now must write, so that no fence is lost (I4)."""
        return frozenset(self._undeleted)

    def deletions_noted(self, ledger_ids: Iterable[int]) -> None:
        """Note that the index durably holds the deletion of these ledgers."""
        self._undeleted.difference_update(ledger_ids)

    def emptied(self, ledger_id: int) -> None:
        """Note that all entries of the ledger were removed here."""
        state = self.by_id.get(ledger_id)
        if state is not None:
            state.last_entry_id = -1
            self.changed.add(ledger_id)

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger that metadata has deleted, except for its fence (I4)."""
        self.by_id.pop(ledger_id, None)
        self.changed.discard(ledger_id)
        self._watched.discard(ledger_id)
        self._undeleted.add(ledger_id)
        self.deleted.add(ledger_id)
