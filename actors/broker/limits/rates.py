"""Rates per second of counters that only grow."""

from __future__ import annotations

import time

RATE_WINDOW_SECONDS_MIN = 1.0  # over which a rate is taken


class Rates:
    """The rates of a set of counters between two calls of ``look``."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._counters: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    def look(self, counters: dict[str, int]) -> dict[str, float]:
        """Return the rates since the last call, or those of the last call if it was less than a window ago."""
        now = time.monotonic()
        passed = now - self._at
        if passed >= RATE_WINDOW_SECONDS_MIN or not self._rates:
            seconds = max(passed, RATE_WINDOW_SECONDS_MIN)
            self._rates = {name: (n - self._counters.get(name, 0)) / seconds for name, n in counters.items()}
            self._counters, self._at = dict(counters), now
        return self._rates
