"""The clocks of this process, in milliseconds, and times as text."""

from __future__ import annotations

import time
from datetime import UTC, datetime

TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999
STEP_MS_MAX = 60_000  # that a clock is set ahead by
BELIEF_MS = 3_600_000  # until a greater step of the wall clock is believed


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970. It may jump: no safety property depends on it."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a clock that never goes back, in ms from an arbitrary start; it stops while the machine sleeps."""
    return time.monotonic_ns() // 1_000_000


class SteadyClock:
    """A wall clock to judge ages by. It follows the wall clock back at once, and ahead too, except for a step of more
    than ``STEP_MS_MAX``, which it believes after ``BELIEF_MS``: something deleted too early cannot be had back."""

    def __init__(self) -> None:
        self._ahead: int | None = None  # of the monotonic clock; None before the first look
        self._doubted_since: int | None = None  # by the monotonic clock, while the wall clock is a step ahead

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        wall, steady = wall_ms(), monotonic_ms()
        ahead = wall - steady
        if self._ahead is not None and ahead > self._ahead + STEP_MS_MAX:
            if self._doubted_since is None:
                self._doubted_since = steady
            if steady - self._doubted_since < BELIEF_MS:
                return steady + self._ahead
        self._ahead, self._doubted_since = ahead, None
        return wall


def iso_time(time_ms: int) -> str:
    """Return a time as ISO-8601 in UTC with milliseconds, such as ``2013-01-01T05:15:00.000Z``.

    A time outside the years 1970 to 9999 becomes the nearest of the two ends: any producer may send one, and it must
    not stop a consumer.
    """
    seconds, milliseconds = divmod(min(max(time_ms, 0), TIME_MS_MAX), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"
