"""Pauses between attempts that grow. Pure: the caller sleeps, and passes the randomness in."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

JITTER = 0.2  # default share of a pause that is random


class Backoff:
    """Pauses that double from attempt to attempt up to a maximum, with jitter.

    Jitter keeps the clients of one broker from returning in step after it fails.

    Args:
        first_ms, max_ms: the first pause and the longest one.
        random: source of the jitter; None gives exact pauses.
        jitter: share of each pause that is random, 0 to 1: a pause of p ms lasts between ``p * (1 - jitter)`` and p.
    """

    def __init__(self, first_ms: float, max_ms: float, random: Random | None = None, *, jitter: float = JITTER) -> None:
        assert first_ms > 0, "a pause of 0 would spin"
        assert 0 <= jitter <= 1, "jitter is a share of the pause"
        self._first_ms = min(first_ms, max_ms)
        self._max_ms = max_ms
        self._random = random
        self._jitter = jitter
        self._next_ms = self._first_ms  # first_ms <= next_ms <= max_ms

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt, and double the pause after that."""
        return self.pause_ms() / 1000

    def pause_ms(self) -> float:
        """Return the milliseconds to wait before the next attempt, and double the pause after that."""
        chosen = self._next_ms
        if self._random is not None:
            chosen *= 1 - self._jitter * self._random.random()
        self._next_ms = min(2 * self._next_ms, self._max_ms)
        return chosen

    def reset(self) -> None:
        """Start from the first pause again, after an attempt that succeeded."""
        self._next_ms = self._first_ms


class Attempts:
    """The attempts of one call that fails for reasons that may pass: the pauses between them, and one deadline for all.

    Args:
        seconds: from now to the deadline, after which no attempt begins.
        pauses: between two attempts.
        clock: returns monotonic seconds.
    """

    def __init__(self, seconds: float, pauses: Backoff, clock: Callable[[], float]) -> None:
        self._pauses = pauses
        self._clock = clock
        self._deadline = clock() + seconds

    def pause_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt.

        Raises:
            Exception: ``error``, because the next attempt would begin after the deadline.
        """
        pause = self._pauses.pause()
        if self._clock() + pause > self._deadline:
            raise error
        return pause
