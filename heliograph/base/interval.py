"""Pauses between two rounds of periodic work: one whose length may change while it lasts, and common moments."""

from __future__ import annotations

import asyncio
import contextlib


class Interval:
    """A length of time that periodic work waits for. All calls on one event loop.

    Args:
        seconds: the length; 0: the work never runs.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = asyncio.Event()

    def set(self, seconds: float) -> None:
        """Change the length, also of a pause that lasts now."""
        if seconds != self._seconds:
            self._seconds = seconds
            self._changed.set()

    async def passes(self) -> None:
        """Return when the length has passed since the call; with a length of 0 only after it was changed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            self._changed.clear()
            left = began + self._seconds - loop.time() if self._seconds > 0 else None
            if left is not None and left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)


def until_tick(seconds: float) -> float:
    """Return the seconds until the clock of the running loop is at a multiple of a length.

    Periodic work that sleeps for these runs at the same moments as all other such work on its loop, so a process at
    rest wakes once for all of it. A sleep lasts between a quarter of the length and one and a quarter: a timer that
    fires a little early is not followed by a second one.
    """
    left = seconds - asyncio.get_running_loop().time() % seconds
    return left if left >= seconds / 4 else left + seconds
