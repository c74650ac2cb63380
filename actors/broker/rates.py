"""Rates of counters that only grow."""

from __future__ import annotations

import time

RATE_WINDOW_SECONDS_MIN = 1.0  # a rate is taken over at least this time


class Rates:
    """Rates per second of growing counters, over the time between two looks."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._counters: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    def look(self, counters: dict[str, int]) -> dict[str, float]:
        """The rates; looks that come too fast get those of the look before."""
        now = time.monotonic()
        passed = now - self._at
        if passed >= RATE_WINDOW_SECONDS_MIN or not self._rates:
            seconds = max(passed, RATE_WINDOW_SECONDS_MIN)
            self._rates = {name: (n - self._counters.get(name, 0)) / seconds for name, n in counters.items()}
            self._counters, self._at = dict(counters), now
        return self._rates
