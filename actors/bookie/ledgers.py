"""What a bookie knows of each of its ledgers, in memory; changes go to the index with the next checkpoint.

A ledger costs about 400 bytes here. Ledgers that metadata has dropped shrink to a place in ``DeletedLedgers``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from actors.bookie.fencing import Fence
from actors.bookie.index import LedgerRecord

LacListener = Callable[[int], None]


class LedgerState:
    """One ledger. ``last_add_confirmed`` is the highest LAC heard of, ``last_entry_id`` the greatest entry stored."""

    __slots__ = ("fence", "is_limbo", "lac_listeners", "last_add_confirmed", "last_entry_id", "ledger_id")

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.fence = Fence()
        self.is_limbo = False
        self.last_add_confirmed = -1
        self.last_entry_id = -1
        self.lac_listeners: list[LacListener] | None = None

    def raise_lac(self, last_add_confirmed: int) -> bool:
        """Take note of a LAC; returns whether it is news, after telling the listeners."""
        if last_add_confirmed <= self.last_add_confirmed:
            return False
        self.last_add_confirmed = last_add_confirmed  # I2: only grows
        if self.lac_listeners:
            for listener in tuple(self.lac_listeners):
                listener(last_add_confirmed)
        return True

    def record(self) -> LedgerRecord:
        """What the index keeps. A fence whose record is still being written counts: it never clears (I4)."""
        return LedgerRecord(
            self.ledger_id, not self.fence.is_clear, self.is_limbo, False, self.last_add_confirmed, self.last_entry_id
        )


class DeletedLedgers:
    """Ids that refuse every add for ever, as spans: ledger ids are given out ascending and are never used again."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, ledger_id: int) -> None:
        """Remember an id. Idempotent."""
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
        """First and last id of each span."""
        return list(zip(self._firsts, self._lasts, strict=True))


class LedgerTable:
    """All ledgers of a bookie. Used on the event loop (and by the start, before there is one)."""

    def __init__(self) -> None:
        self._states: dict[int, LedgerState] = {}
        self._changed: set[int] = set()
        self._watched: set[int] = set()
        self._undeleted: set[int] = set()  # dropped, and the index may not know it yet
        self._limbo_seen = -1
        self.deleted = DeletedLedgers()
        self.doubtful_to = 0  # ledgers up to this one may have had a fence here that was lost with a disk

    def __len__(self) -> int:
        return len(self._states)

    def load(self, records: Iterable[LedgerRecord]) -> None:
        """Take over what an index holds."""
        for record in records:
            if record.is_deleted:
                self.deleted.add(record.ledger_id)
                continue
            state = self._states[record.ledger_id] = LedgerState(record.ledger_id)
            state.is_limbo = record.is_limbo
            state.last_add_confirmed = record.last_add_confirmed
            state.last_entry_id = record.last_entry_id
            if record.is_fenced:
                state.fence.restore()  # I4

    def get(self, ledger_id: int) -> LedgerState | None:
        """The ledger, if anything is known of it: of one from before a loss, that nothing is certain."""
        state = self._states.get(ledger_id)
        if state is None and 0 < ledger_id <= self.doubtful_to and ledger_id not in self.deleted:
            return self.make(ledger_id)
        return state

    def make(self, ledger_id: int) -> LedgerState:
        """The ledger, known from now on."""
        state = self._states.get(ledger_id)
        if state is None:
            assert ledger_id not in self.deleted, "a deleted ledger does not come back"  # I4
            state = self._states[ledger_id] = LedgerState(ledger_id)
            if 0 < ledger_id <= self.doubtful_to:
                state.is_limbo = True  # I6
                state.fence.restore()  # I4
        return state

    def ids(self) -> list[int]:
        """A snapshot of all ids."""
        return list(self._states)

    def states(self) -> Iterable[LedgerState]:
        """All ledgers."""
        return self._states.values()

    def next_in_limbo(self, count: int) -> list[int]:
        """Some ledgers in limbo, other ones each time until all had their turn."""
        waiting = sorted(ledger_id for ledger_id, state in self._states.items() if state.is_limbo)
        behind = [ledger_id for ledger_id in waiting if ledger_id > self._limbo_seen]
        chosen = (behind or waiting)[:count]
        self._limbo_seen = chosen[-1] if chosen else -1
        return chosen

    def in_limbo(self) -> int:
        """How many ledgers."""
        return sum(state.is_limbo for state in self._states.values())

    def leave_limbo(self, ledger_id: int) -> None:
        """All that the ledger should have here is here: "no" may be said again."""
        state = self._states.get(ledger_id)
        if state is not None:  # not deleted meanwhile
            state.is_limbo = False
            self._changed.add(ledger_id)

    def mark_changed(self, ledger_id: int) -> None:
        """Have the next checkpoint write the ledger's record."""
        self._changed.add(ledger_id)

    def watch(self, ledger_id: int) -> None:
        """From now on note whether the ledger changes."""
        self._watched.add(ledger_id)

    def is_unchanged(self, ledger_id: int) -> bool:
        """Whether nothing was added to a watched ledger, and nothing else of it changed, since."""
        return ledger_id in self._watched and ledger_id not in self._changed

    @property
    def has_changes(self) -> bool:
        """Whether a checkpoint would have any record to write."""
        return bool(self._changed or self._undeleted)

    def take_changed(self) -> list[LedgerRecord]:
        """Records to be written by a checkpoint that starts now."""
        changed, self._changed = self._changed, set()
        self._watched -= changed
        return [self._states[ledger_id].record() for ledger_id in sorted(changed) if ledger_id in self._states]

    def take_dropped(self) -> frozenset[int]:
        """Dropped ledgers whose deletion a checkpoint that starts now must write, so that no fence is lost (I4)."""
        return frozenset(self._undeleted)

    def deletions_noted(self, ledger_ids: Iterable[int]) -> None:
        """The index knows, durably, that these were dropped."""
        self._undeleted.difference_update(ledger_ids)

    def emptied(self, ledger_id: int) -> None:
        """The ledger has no entries here any more."""
        state = self._states.get(ledger_id)
        if state is not None:
            state.last_entry_id = -1
            self._changed.add(ledger_id)

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger that metadata dropped, but for its fence (I4)."""
        state = self._states.pop(ledger_id, None)
        self._changed.discard(ledger_id)
        self._watched.discard(ledger_id)
        self._undeleted.add(ledger_id)
        self.deleted.add(ledger_id)
        if state is not None and state.lac_listeners:
            for listener in tuple(state.lac_listeners):
                listener(state.last_add_confirmed)
