"""Which entries of a subscription wait for their time (pure).

A bit for each entry says that it waits. Its time is held in memory while few wait; every ``RUN_ENTRIES_MAX`` of them
become a *run*, sorted by time, that a ledger keeps, and of a run only the items next in time are in memory. So a
million waiting entries cost some hundred bits, a few heads of runs and at most ``LOADED_MAX`` times (I15).

The index only says what to pass over and when to look again: an entry that it does not know is looked at when its turn
comes, and its own metadata says whether it has to wait. Losing a run therefore costs reading, never a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from actors.broker.index_set import IndexSet
from actors.broker.position import Position

RUN_ENTRIES_MAX = 8_192  # waiting entries that no run holds before one is made of them
UNSTORED_MAX = 65_536  # the same while runs cannot be stored; then no further entry is passed over
LOADED_MAX = 65_536  # items of runs in memory, over all runs; each run may have LOADED_MIN
LOADED_MIN = 16

Item = tuple[int, int]  # due time in ms since the epoch, entry


@dataclass(slots=True, eq=False)
class Run:
    """A stored run: ``loaded`` of its ``count`` items were taken into memory, the next one is due at ``next_ms``."""

    key: Position  # where it is stored
    count: int
    loaded: int
    next_ms: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read ``count`` items of a run from its item ``run.loaded`` on, and the time of the one behind them."""

    run: Run
    count: int


class DelayedIndex:
    """Entries that wait, ``count`` of them, by time. Times are milliseconds since the epoch."""

    def __init__(self) -> None:
        self.count = 0  # kept apart: every delivery asks for it
        self._waiting = IndexSet()
        self._heap: list[Item] = []  # in memory: in no run, being stored, or loaded from a run
        self._unstored: dict[int, int] = {}  # in no run yet: entry -> time
        self._storing: dict[int, int] = {}
        self._runs: list[tuple[int, int, int, Run]] = []  # heap by the time of the next item
        self._loading: Run | None = None
        self._suspect = IndexSet()  # their run was lost: due at once, so that their metadata is looked at again

    def clear(self) -> None:
        """Nothing waits, as far as is known."""
        self._waiting.clear()
        self.count = 0
        self._suspect.clear()
        self._unstored.clear()
        self._storing.clear()
        self._heap.clear()
        self._runs.clear()
        self._loading = None

    @property
    def in_memory(self) -> int:
        """How many times are held in memory."""
        return len(self._heap)

    @property
    def is_full(self) -> bool:
        """Whether ``add`` has no room, because no run could be stored for long."""
        return len(self._unstored) + len(self._storing) >= UNSTORED_MAX

    def __contains__(self, index: int) -> bool:
        return index in self._waiting

    def next_not_waiting(self, index: int) -> int:
        """The first entry at or above ``index`` that does not wait."""
        return self._waiting.next_missing(index)

    def add(self, index: int, due_ms: int) -> None:
        """An entry has to wait. There must be room."""
        assert not self.is_full, "the caller asks for room first"
        if self._waiting.add(index):
            self._unstored[index] = due_ms
            heappush(self._heap, (due_ms, index))
            self.count += 1

    def forget(self, index: int) -> None:
        """The entry was acknowledged before its time."""
        self._waiting.remove(index)
        self._unstored.pop(index, None)
        self.count = len(self._waiting)

    def forget_below(self, mark: int) -> None:
        """Every entry below ``mark`` was acknowledged."""
        self._waiting.drop_range(0, mark)
        for index in [index for index in self._unstored if index < mark]:
            del self._unstored[index]
        self.count = len(self._waiting)

    def take_due(self, now_ms: int, limit: int) -> list[int]:
        """At most ``limit`` entries in memory whose time has come; they wait no more."""
        due = self._take_suspect(limit) if len(self._suspect) else []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < limit:
            index = heappop(self._heap)[1]
            if index in self._waiting:
                self._waiting.remove(index)
                self._unstored.pop(index, None)
                due.append(index)
        self.count = len(self._waiting)
        return due

    def next_time(self) -> int | None:
        """When to look again, None when nothing waits. Not while a load is under way: it tells by itself."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heappop(self._heap)
        times = [self._heap[0][0]] if self._heap else []
        if len(self._suspect):
            times.append(0)
        if self._runs and self._loading is None:
            times.append(self._runs[0][0])
        return min(times, default=None)

    # Runs

    def take_run(self) -> list[Item] | None:
        """Items to store as a run, in order, when there are enough of them; ``stored`` or ``not_stored`` answers."""
        if self._storing or len(self._unstored) < RUN_ENTRIES_MAX:
            return None
        self._storing, self._unstored = self._unstored, {}
        return sorted((due, index) for index, due in self._storing.items())

    def stored(self, key: Position, items: Sequence[Item]) -> None:
        """The run is durable: its items leave memory."""
        storing, self._storing = self._storing, {}
        self._heap = [item for item in self._heap if item[1] not in storing]
        heapify(self._heap)
        self._push(Run(key, len(items), 0, items[0][0]))

    def not_stored(self) -> None:
        """The run could not be stored now: its items stay in memory, and are stored with later ones."""
        storing, self._storing = self._storing, {}
        self._unstored |= {index: due for index, due in storing.items() if index in self._waiting}

    def take_load(self, now_ms: int) -> Load | None:
        """The run to read items of, when the time of one has come; ``loaded`` or ``not_loaded`` answers."""
        if self._loading is not None or not self._runs or self._runs[0][0] > now_ms:
            return None
        share = (LOADED_MAX - len(self._heap)) // len(self._runs)
        run = self._loading = heappop(self._runs)[3]
        return Load(run, min(max(share, LOADED_MIN), run.count - run.loaded))

    def loaded(self, items: Sequence[Item | None], next_ms: int | None) -> bool:
        """What ``take_load`` asked for was read; None stands for an entry that is gone.

        Returns:
            whether the run has nothing left and can be deleted.
        """
        run, self._loading = self._loading, None
        assert run is not None, "a load was under way"
        for item in items:
            if item is not None and item[1] in self._waiting:
                heappush(self._heap, item)
        run.loaded += len(items)
        if next_ms is None:
            return True
        run.next_ms = next_ms
        self._push(run)
        return False

    def not_loaded(self, *, is_gone: bool) -> None:
        """The run could not be read: not now, so it stays; or never more, so all that only runs know is looked at."""
        run, self._loading = self._loading, None
        assert run is not None, "a load was under way"
        if not is_gone:
            self._push(run)
            return
        self._runs.clear()
        known = {index for _, index in self._heap}
        for first, stop in list(self._waiting.runs()):
            for index in range(first, stop):
                if index not in known:
                    self._suspect.add(index)

    def restore(self, key: Position, items: Sequence[Item | None], is_open: Callable[[int], bool]) -> bool:
        """A run found after a restart; ``is_open`` says which entries are not acknowledged.

        Returns:
            whether it holds anything still; otherwise it can be deleted.
        """
        first = -1
        for place, item in enumerate(items):
            if item is not None and is_open(item[1]):
                self._waiting.add(item[1])
                first = place if first < 0 else first
        self.count = len(self._waiting)
        if first < 0:
            return False
        item = items[first]
        assert item is not None, "the first open item is one"
        self._push(Run(key, len(items), first, item[0]))
        return True

    def _take_suspect(self, limit: int) -> list[int]:
        due: list[int] = []
        at = -1
        for first, stop in self._suspect.runs():
            at = min(stop, first + limit - len(due))
            due.extend(index for index in range(first, at) if index in self._waiting)
            if len(due) >= limit:
                break
        self._suspect.drop_range(0, at)
        for index in due:
            self._waiting.remove(index)
        return due

    def _push(self, run: Run) -> None:
        heappush(self._runs, (run.next_ms, run.key.ledger_id, run.key.entry_id, run))
