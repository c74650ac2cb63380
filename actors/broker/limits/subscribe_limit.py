"""A limit on how often one consumer may subscribe to a topic (pure)."""

from __future__ import annotations

from collections import Counter

CONSUMERS_MAX = 10_000  # counted in one period; any further one is not limited in it  # I15


class SubscribeLimit:
    """Counts the attempts of each consumer in periods of a fixed length. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._allowed = 0  # attempts of one consumer in a period, 0 without a limit
        self._period = 1.0
        self._began = 0.0
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def set(self, per_second: float, period_seconds: int) -> None:
        """Apply a new limit; 0 means none."""
        self._allowed = max(1, round(per_second * period_seconds)) if per_second > 0 else 0
        self._period = period_seconds
        if not self._allowed:
            self._counts.clear()

    def admit(self, consumer: tuple[str, str, int], now: float) -> bool:
        """Count an attempt, and return whether it is within the limit.

        Args:
            consumer: the client's host, and the name and id of its consumer.
        """
        if not self._allowed:
            return True
        if now - self._began >= self._period:
            self._counts.clear()
            self._began = now
        if consumer not in self._counts and len(self._counts) >= CONSUMERS_MAX:
            return True
        self._counts[consumer] += 1
        return self._counts[consumer] <= self._allowed
