"""The order in which replicas are asked, by the failures and slow answers that a process has seen lately."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

FAILURE_MEMORY_MS = 30_000
SLOW_MEMORY_MS = 10_000  # short, so that slow marks do not spread over all bookies
BOOKIES_REMEMBERED_MAX = 10_000


class BookieHealth:
    """Recent failures and slow answers by bookie.

    Args:
        nearby: bookies that are asked before others that are as healthy: groups of them, the nearest first.
    """

    def __init__(self, nearby: Sequence[Collection[str]] = ()) -> None:
        self._distances = {bookie: place for place, group in reversed(list(enumerate(nearby))) for bookie in group}
        self._far = len(nearby)
        self._failed_at: dict[str, int] = {}
        self._slow_at: dict[str, int] = {}

    def note_failure(self, bookie_id: str, now: int) -> None:
        _remember(self._failed_at, bookie_id, now)

    def note_slow(self, bookie_id: str, now: int) -> None:
        """Note that the bookie was silent for longer than the speculative delay."""
        _remember(self._slow_at, bookie_id, now)

    def note_success(self, bookie_id: str) -> None:
        """Note that the bookie answered, and forget its failures."""
        if self._failed_at or self._slow_at:
            self._failed_at.pop(bookie_id, None)
            self._slow_at.pop(bookie_id, None)

    def order(self, bookies: Iterable[str], spread: int, now: int) -> list[str]:
        """Return the bookies in the order to ask them: healthy, slow, failed; the nearest first, then the oldest mark.

        Args:
            spread: a number, the same for all reads of a ledger, so that one bookie serves its sequential reads and
                different ledgers use different bookies.
        """
        listed = list(bookies)
        if not self._failed_at and not self._slow_at and not self._distances:
            start = spread % len(listed)
            return listed[start:] + listed[:start]
        count = len(listed)
        ranked = sorted(range(count), key=lambda i: (*self._badness(listed[i], now), (i - spread) % count))
        return [listed[i] for i in ranked]

    def _badness(self, bookie_id: str, now: int) -> tuple[int, int, int]:
        distance = self._distances.get(bookie_id, self._far)
        failed_at = self._failed_at.get(bookie_id)
        if failed_at is not None and now - failed_at < FAILURE_MEMORY_MS:
            return 2, distance, failed_at
        slow_at = self._slow_at.get(bookie_id)
        if slow_at is not None and now - slow_at < SLOW_MEMORY_MS:
            return 1, distance, slow_at
        return 0, distance, 0


def _remember(times: dict[str, int], bookie_id: str, now: int) -> None:
    if len(times) >= BOOKIES_REMEMBERED_MAX:  # I15
        times.clear()
    times[bookie_id] = now
