"""The simulated world: one clock, one queue of events, named streams of randomness. No threads, no wall clock.

A seed decides everything. Everything that happens to a process is an event of that process: a crashed process loses its
events, a paused one gets them late. Each process, link and fault draws from a stream of its own, so that leaving one
fault out changes the others as little as possible.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

Action = Callable[[], None]


class Process:
    """A process that may crash and pause. Events of an earlier incarnation never reach a later one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 0
        self.is_up = True
        self.paused_until = 0
        self.clock_ahead_ms = 0  # how far its clock is ahead of the world's

    def crash(self) -> None:
        """Crash: events that are on their way are lost."""
        self.incarnation += 1
        self.is_up = False

    def restart(self) -> None:
        """Start again, and take events."""
        self.is_up = True


class World:
    """A clock in milliseconds, and events in the order of their times, then of their creation."""

    def __init__(self, seed: int, is_traced: bool = False) -> None:
        self.seed = seed
        self.now = 0
        self.steps = 0
        self.counts: Counter[str] = Counter()  # how often each kind of fault and of event happened
        self.trace: list[str] | None = [] if is_traced else None
        self.last: Process | None = None  # the process of the last event, None if it had none
        self.alarms: list[tuple[str, str]] = []  # invariants that a part of the simulation saw broken, and what it saw
        self._queue: list[tuple[int, int, Process | None, int, Action]] = []
        self._made = 0

    def stream(self, name: str) -> Random:
        """Return the randomness of one part of the world, which depends on the seed and the name only."""
        return Random(f"{self.seed}/{name}")

    def after(self, delay_ms: int, action: Action, process: Process | None = None) -> None:
        """Let ``action`` happen to ``process`` after ``delay_ms``."""
        self._made += 1
        incarnation = process.incarnation if process else 0
        heapq.heappush(self._queue, (self.now + delay_ms, self._made, process, incarnation, action))

    def step(self) -> bool:
        """Let the next event happen. Return False if there is none."""
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
        """Count something that happened, for the report."""
        self.counts[what] += times

    def note(self, *words: object) -> None:
        """Add a line to the trace. Words are formatted only if the run is traced."""
        if self.trace is not None:
            self.trace.append(f"{self.now:>7} {' '.join(str(word) for word in words)}")
