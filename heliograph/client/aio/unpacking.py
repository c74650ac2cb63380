"""The bytes of decompressed payloads that consumers of one process hold (I15).

A few kilobytes of a message may become 64 MiB, which stay until the last message of the batch was taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from heliograph.base.guard.shares import ShareCounter

SHARE_OF_ONE_KEY = 4  # one key may hold a quarter of all


class UnpackBudget:
    """Bytes that all together, and those of one key, may hold. One payload above a bound is taken, but alone."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._held = ShareCounter()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def held_bytes(self) -> int:
        return self._held.total

    async def take(self, key: str, size: int) -> HeldBytes:
        """Return the right to hold some bytes, once there is room. It ends when it is released or collected."""
        while not self._fits(key, size):
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
        self._held.add(key, size)
        return HeldBytes(self, key, size)

    def _fits(self, key: str, size: int) -> bool:
        fits_key = not self._held[key] or self._held[key] + size <= self.bytes_max // SHARE_OF_ONE_KEY
        return fits_key and (not self._held.total or self._held.total + size <= self.bytes_max)

    def give_back(self, key: str, size: int) -> None:
        """Count bytes that are not held any more. Those that wait look again, in the order in which they came."""
        self._held.add(key, -size)
        waiting, self._waiting = self._waiting, deque()
        for changed in waiting:  # which may be of other loops than the thread that collected the bytes
            if not changed.get_loop().is_closed():
                changed.get_loop().call_soon_threadsafe(_wake, changed)


def _wake(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)


class HeldBytes:
    """Bytes that ``UnpackBudget`` counts until this is released."""

    __slots__ = ("_budget", "_key", "_size")

    def __init__(self, budget: UnpackBudget, key: str, size: int) -> None:
        self._budget, self._key, self._size = budget, key, size

    def during(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield some items and release the bytes when they are exhausted or given up."""
        try:
            yield from items
        finally:
            self.release()

    def release(self) -> None:
        size, self._size = self._size, 0
        if size:
            self._budget.give_back(self._key, size)

    def __del__(self) -> None:
        self.release()
