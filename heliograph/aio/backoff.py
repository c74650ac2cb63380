"""Pauses between attempts."""

from __future__ import annotations

from random import Random

_JITTER = 0.2  # share of a pause that is left to chance, so that clients of a dead broker do not return in step


class Backoff:
    """Doubling pauses with jitter.

    Args:
        first_ms, max_ms: the first pause and the longest one.
        random: where the jitter comes from.
    """

    def __init__(self, first_ms: float, max_ms: float, random: Random) -> None:
        assert first_ms > 0, "a pause of nothing would spin"
        self._first_ms = min(first_ms, max_ms)
        self._max_ms = max_ms
        self._random = random
        self._next_ms = self._first_ms

    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        chosen = self._next_ms * (1 - _JITTER * self._random.random())
        self._next_ms = min(2 * self._next_ms, self._max_ms)
        return chosen / 1000

    def reset(self) -> None:
        """An attempt succeeded: start from the first pause again."""
        self._next_ms = self._first_ms
