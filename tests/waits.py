"""Waits for what other tasks, threads and processes do. Nothing tells a test of it, so it looks again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 60.0  # beyond them the test fails
PAUSE_SECONDS = 0.002  # between two looks

T = TypeVar("T")


async def until(holds: Callable[[], object], seconds: float = SECONDS) -> None:
    """Return when a condition holds.

    Raises:
        TimeoutError: it does not hold in time.
    """
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_SECONDS)


async def many_turns() -> None:
    """Let the loop turn so often that what does not wait for a thread, a socket or a time is done."""
    for _ in range(100):
        await asyncio.sleep(0)


def block_until(found: Callable[[], T], seconds: float = SECONDS, what: str = "it did not come to be") -> T:
    """Block until a function returns something that is true, and return that.

    Raises:
        AssertionError: it does not in time; says ``what``.
    """
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(PAUSE_SECONDS)
    return value
