"""Counts of the units that callers hold of a shared resource, with bounds for one caller and for all (I15)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

SHARE_OF_ONE_KEY = 4  # one key may hold a quarter of all


class ShareCounter:
    """Count units held per key, such as bytes per client address."""

    def __init__(self) -> None:
        self.total = 0  # 0 <= total
        self._of: dict[str, int] = {}  # no key holds nothing

    def __getitem__(self, key: str) -> int:
        return self._of.get(key, 0)

    def __len__(self) -> int:
        return len(self._of)

    def add(self, key: str, count: int) -> None:
        """Count more, or less where ``count`` is negative."""
        of_key = self._of.get(key, 0) + count
        assert of_key >= 0, "only held units are given back"
        self.total += count
        if of_key:
            self._of[key] = of_key
        else:
            self._of.pop(key, None)


class ConnectionLimit:
    """The connections of a listener, in all and of each address.

    Args:
        most: in all.
        of_address_max: of one address.

    Attributes:
        most, of_address_max: may change; connections above a new limit stay.
    """

    def __init__(self, most: int, of_address_max: int) -> None:
        self.most = most
        self.of_address_max = of_address_max
        self._open = ShareCounter()

    @property
    def total(self) -> int:
        return self._open.total

    def admit(self, address: str) -> bool:
        """Count a connection; return False, without counting it, if there are too many."""
        if self._open.total >= self.most or self._open[address] >= self.of_address_max:
            return False
        self._open.add(address, 1)
        return True

    def leave(self, address: str) -> None:
        """Count the end of a connection that was admitted."""
        self._open.add(address, -1)

    def fault(self, address: str) -> str:
        """Return why a connection of the address is refused now, with the numbers; empty if it is not."""
        if self._open.total >= self.most:
            return f"there are {self._open.total} connections, {self.most} may be open"
        if self._open[address] >= self.of_address_max:
            return f"{address} has {self._open[address]} connections, one address may have {self.of_address_max}"
        return ""


class UnpackBudget:
    """Bytes of decompressed payloads that all together, and those of one key, may hold (I15). One above a bound is
    taken, but alone.

    A few kilobytes of a message may become 64 MiB, which stay until the last message of the batch was taken.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._held = ShareCounter()
        self._returned: deque[tuple[str, int]] = deque()  # not subtracted yet: any thread, or the collector, adds to it
        self._waiting: deque[asyncio.Future[None]] = deque()  # for a change, and cancelled ones

    @property
    def held_bytes(self) -> int:
        self._subtract_returned()
        return self._held.total

    async def take(self, key: str, size: int) -> HeldBytes:
        """Return the right to hold some bytes, once there is room. It ends when it is released or collected. All calls
        on one event loop."""
        while True:
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)  # first: bytes may come back at any moment
            self._subtract_returned()
            if self._fits(key, size):
                changed.cancel()
                self._held.add(key, size)
                return HeldBytes(self, key, size)
            await changed

    def _subtract_returned(self) -> None:
        while self._returned:
            key, size = self._returned.popleft()
            self._held.add(key, -size)

    def _fits(self, key: str, size: int) -> bool:
        fits_key = not self._held[key] or self._held[key] + size <= self.bytes_max // SHARE_OF_ONE_KEY
        return fits_key and (not self._held.total or self._held.total + size <= self.bytes_max)

    def give_back(self, key: str, size: int) -> None:
        """Count bytes that are not held any more. Waiting callers try again, in the order in which they came."""
        self._returned.append((key, size))
        for _ in range(len(self._waiting)):
            with contextlib.suppress(IndexError):  # another thread wakes them, too
                changed = self._waiting.popleft()  # which may be of another loop than this thread
                if not (changed.done() or changed.get_loop().is_closed()):
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

    def __enter__(self) -> None:
        """Hold the bytes for the length of a block."""

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the bytes back. Idempotent; any thread may."""
        size, self._size = self._size, 0
        if size:
            self._budget.give_back(self._key, size)

    def __del__(self) -> None:
        self.release()
