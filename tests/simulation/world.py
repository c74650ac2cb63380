"""The simulated world: one clock, one queue of events, named streams of randomness. No threads, no wall clock.

A seed decides everything. Whatever happens to a process is an event of that process: a crashed one loses its events,
a paused one gets them late. Each process, link and fault draws from a stream of its own, so that leaving one fault out
disturbs the others as little as possible.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

Action = Callable[[], None]


class Process:
    """Something that runs, crashes and pauses. Events of an earlier incarnation never reach a later one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 0
        self.is_up = True
        self.paused_until = 0
        self.clock_ahead_ms = 0  # of its own clock, before that of the world

    def crash(self) -> None:
        """Lose all events that are on their way."""
        self.incarnation += 1
        self.is_up = False

    def restart(self) -> None:
        """Take events again."""
        self.is_up = True


class World:
    """Clock in milliseconds, events in order of time and then of their making."""

    def __init__(self, seed: int, is_traced: bool = False) -> None:
        self.seed = seed
        self.now = 0
        self.steps = 0
        self.counts: Counter[str] = Counter()  # how often each kind of fault and of event happened
        self.trace: list[str] | None = [] if is_traced else None
        self.last: Process | None = None  # whose event happened last; None when it was nobody's
        self.alarms: list[tuple[str, str]] = []  # invariants that somebody saw broken, and how
        self._queue: list[tuple[int, int, Process | None, int, Action]] = []
        self._made = 0

    def stream(self, name: str) -> Random:
        """The randomness of one part of the world: the same for the same seed and name, whatever else happens."""
        return Random(f"{self.seed}/{name}")

    def after(self, delay_ms: int, action: Action, process: Process | None = None) -> None:
        """Have ``action`` happen to ``process`` in ``delay_ms``."""
        self._made += 1
        incarnation = process.incarnation if process else 0
        heapq.heappush(self._queue, (self.now + delay_ms, self._made, process, incarnation, action))

    def step(self) -> bool:
        """Let the next event happen; False when there is none left."""
        if not self._queue:
            return False
        when, made, process, incarnation, action = heapq.heappop(self._queue)
        if when > self.now:
            self.now = when
        if process is not None:
            if process.incarnation != incarnation or not process.is_up:
                return True
            if process.paused_until > self.now:
                heapq.heappush(self._queue, (process.paused_until, made, process, incarnation, action))
                return True
        self.steps += 1
        self.last = process
        action()
        return True

    def count(self, what: str, times: int = 1) -> None:
        """Note that something happened, for the report."""
        self.counts[what] += times

    def note(self, *words: object) -> None:
        """A line of the trace. Words are put into text only if the run is traced."""
        if self.trace is not None:
            self.trace.append(f"{self.now:>7} {' '.join(str(word) for word in words)}")
