"""The entries of a subscription that wait for their delivery time (pure).

One bit per entry says that it waits. Its time is held in memory while few entries wait. Every ``RUN_ENTRIES_MAX`` of
them become a *run*, sorted by time, which is stored in a ledger, and only the next items of a run are in memory. So a
million waiting entries cost their bits, the heads of about a hundred runs, and at most ``LOADED_MAX`` times (I15).

The index only says which entries to skip and when to look again. An entry that it does not know is read when its turn
comes, and its own metadata says whether it has to wait. So a lost run costs reads, never a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from heliograph.actors.broker.cursor.index_set import IndexSet
from heliograph.actors.broker.records.position import Position

RUN_ENTRIES_MAX = 8_192  # waiting entries in no run, before a run is made of them
UNSTORED_MAX = 65_536  # waiting entries in no run while runs cannot be stored; then no further entry is added
LOADED_MAX = 65_536  # items of all runs in memory; each run may have LOADED_MIN
LOADED_MIN = 16

Item = tuple[int, int]  # due time in ms since the epoch, index of the entry


@dataclass(slots=True, eq=False)
class DelayedRun:
    """A stored run: ``loaded`` of its ``count`` items were read into memory, the next one is due at ``next_ms``."""

    key: Position  # where it is stored
    count: int
    loaded: int
    next_ms: int


@dataclass(frozen=True, slots=True)
class RunToLoad:
    """A read to make: ``count`` items of a run from its item ``run.loaded`` on, and the due time of the item after
    them."""

    run: DelayedRun
    count: int


class DelayedIndex:
    """The waiting entries by time. Times are milliseconds since the epoch.

    Attributes:
        count: how many entries wait.
    """

    def __init__(self) -> None:
        self.count = 0  # == _waiting.count; an attribute because every delivery reads it
        self._waiting = IndexSet()
        self._heap: list[Item] = []  # in memory: in no run, being stored, or loaded from a run
        self._unstored: dict[int, int] = {}  # in no run yet: entry -> due time
        self._storing: dict[int, int] = {}  # in the run that is being stored
        self._runs: list[tuple[int, int, int, DelayedRun]] = []  # heap by the time of the next item
        self._loading: DelayedRun | None = None
        self._unknown = IndexSet()  # their run was lost: due at once, so that their metadata is read again

    def clear(self) -> None:
        """Remove every entry and run."""
        self._waiting.clear()
        self.count = 0
        self._unknown.clear()
        self._unstored.clear()
        self._storing.clear()
        self._heap.clear()
        self._runs.clear()
        self._loading = None

    @property
    def in_memory(self) -> int:
        return len(self._heap)

    @property
    def is_full(self) -> bool:
        """Return whether ``add`` has no room, because runs could not be stored for long."""
        return len(self._unstored) + len(self._storing) >= UNSTORED_MAX

    def __contains__(self, index: int) -> bool:
        return index in self._waiting

    def next_not_waiting(self, index: int) -> int:
        """Return the first entry at or above ``index`` that does not wait."""
        return self._waiting.next_missing(index)

    def add(self, index: int, due_ms: int) -> None:
        """Add an entry that has to wait. There must be room."""
        assert not self.is_full, "the caller checks for room first"  # I15
        if self._waiting.add(index):
            self._unstored[index] = due_ms
            heappush(self._heap, (due_ms, index))
            self.count += 1

    def forget(self, index: int) -> None:
        """Remove an entry that was acknowledged before its time."""
        self._waiting.remove(index)
        self._unstored.pop(index, None)
        self.count = self._waiting.count

    def forget_below(self, mark: int) -> None:
        """Remove every entry below ``mark``: they were acknowledged."""
        self._waiting.drop_range(0, mark)
        for index in [index for index in self._unstored if index < mark]:
            del self._unstored[index]
        self.count = self._waiting.count

    def take_due(self, now_ms: int, limit: int) -> list[int]:
        """Remove and return at most ``limit`` entries in memory that are due."""
        due = self._take_unknown(limit) if self._unknown.count else []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < limit:
            index = heappop(self._heap)[1]
            if index in self._waiting:
                self._waiting.remove(index)
                self._unstored.pop(index, None)
                due.append(index)
        self.count = self._waiting.count
        return due

    def next_time(self) -> int | None:
        """Return when ``take_due`` or ``take_load`` has something next, None when nothing waits. Runs do not count
        while a load is in flight."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heappop(self._heap)
        times = [self._heap[0][0]] if self._heap else []
        if self._unknown.count:
            times.append(0)
        if self._runs and self._loading is None:
            times.append(self._runs[0][0])
        return min(times, default=None)

    # -- runs

    def take_run(self) -> list[Item] | None:
        """Return the items of a run to store, sorted, if there are enough. Then call ``stored`` or ``not_stored``."""
        if self._storing or len(self._unstored) < RUN_ENTRIES_MAX:
            return None
        self._storing, self._unstored = self._unstored, {}
        return sorted((due, index) for index, due in self._storing.items())

    def stored(self, key: Position, items: Sequence[Item]) -> None:
        """Note that the run is durable: its items leave memory."""
        assert len(items) == len(self._storing), "the run that was taken"
        storing, self._storing = self._storing, {}
        self._heap = [item for item in self._heap if item[1] not in storing]
        heapify(self._heap)
        self._push(DelayedRun(key, len(items), 0, items[0][0]))

    def not_stored(self) -> None:
        """Note that the run could not be stored now: its items stay in memory and are stored with later ones."""
        storing, self._storing = self._storing, {}
        self._unstored |= {index: due for index, due in storing.items() if index in self._waiting}

    def take_load(self, now_ms: int) -> RunToLoad | None:
        """Return the read of a run if one of its items is due. Then call ``loaded`` or ``not_loaded``."""
        if self._loading is not None or not self._runs or self._runs[0][0] > now_ms:
            return None
        share = (LOADED_MAX - len(self._heap)) // len(self._runs)
        run = self._loading = heappop(self._runs)[3]
        return RunToLoad(run, min(max(share, LOADED_MIN), run.count - run.loaded))

    def loaded(self, items: Sequence[Item | None], next_ms: int | None) -> bool:
        """Add the items that ``take_load`` asked for; None stands for an entry that is not in the topic any more.

        Returns:
            True if the run has no item left and can be deleted.
        """
        run, self._loading = self._loading, None
        assert run is not None, "a load was in flight"
        for item in items:
            if item is not None and item[1] in self._waiting:
                heappush(self._heap, item)
        run.loaded += len(items)
        assert run.loaded <= run.count, "no more items than the run has"
        if next_ms is None:
            return True
        run.next_ms = next_ms
        self._push(run)
        return False

    def not_loaded(self, *, is_gone: bool) -> None:
        """Note that the run could not be read.

        Args:
            is_gone: it can never be read. All entries are then due at once, also those whose times are in memory: to
                tell them apart would take a look at each (I24), and their own metadata says when they are due.
        """
        run, self._loading = self._loading, None
        assert run is not None, "a load was in flight"
        if not is_gone:
            self._push(run)
            return
        self._runs.clear()
        self._heap.clear()
        self._unstored.clear()
        self._unknown = self._waiting.copy()

    def restore(self, key: Position, items: Sequence[Item | None], is_open: Callable[[int], bool]) -> bool:
        """Add a run found after a restart. ``is_open`` says whether an entry is not acknowledged.

        Returns:
            False if the run has no such entry and can be deleted.
        """
        first = -1
        for place, item in enumerate(items):
            if item is not None and is_open(item[1]):
                self._waiting.add(item[1])
                first = place if first < 0 else first
        self.count = self._waiting.count
        if first < 0:
            return False
        item = items[first]
        assert item is not None, "the first open item is one"
        self._push(DelayedRun(key, len(items), first, item[0]))
        return True

    def _take_unknown(self, limit: int) -> list[int]:
        due: list[int] = []
        at = -1
        for first, stop in self._unknown.runs():
            at = min(stop, first + limit - len(due))
            due.extend(index for index in range(first, at) if index in self._waiting)
            if len(due) >= limit:
                break
        self._unknown.drop_range(0, at)
        for index in due:
            self._waiting.remove(index)
        return due

    def _push(self, run: DelayedRun) -> None:
        heappush(self._runs, (run.next_ms, run.key.ledger_id, run.key.entry_id, run))
