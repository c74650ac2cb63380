"""The clocks of this process, in milliseconds."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970. It may jump: no safety property depends on it."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a clock that never goes back, in ms from an arbitrary start; it stops while the machine sleeps."""
    return time.monotonic_ns() // 1_000_000
