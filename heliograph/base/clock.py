"""The clocks of this process, in milliseconds, and times as text."""

from __future__ import annotations

import time
from datetime import UTC, datetime

TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970. It may jump: no safety property depends on it."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a clock that never goes back, in ms from an arbitrary start; it stops while the machine sleeps."""
    return time.monotonic_ns() // 1_000_000


def iso_time(time_ms: int) -> str:
    """Return a time as ISO-8601 in UTC with milliseconds, such as ``2013-01-01T05:15:00.000Z``.

    A time outside the years 1970 to 9999 becomes the nearest of the two ends: any producer may send one, and it must
    not stop a consumer.
    """
    seconds, milliseconds = divmod(min(max(time_ms, 0), TIME_MS_MAX), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"
