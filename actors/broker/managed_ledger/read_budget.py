"""The memory for entries that subscriptions of a broker read ahead from bookies, all together (I15).

Entries that are not pushed yet can be read again. So the subscription that read longest ago loses them when another
subscription needs the room; reads that find no room wait for those that are under way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Protocol

READ_BUDGET_BYTES = 128 << 20  # entries that were read and not pushed, and reads under way  # I15
READ_BYTES_MAX = 4 << 20  # of one read
READ_BYTES_LEAST = 256 << 10  # the same, where many subscriptions read; what one turn of a subscription pushes
_READERS_AT_ONCE = 2  # times as many full reads fit as there are readers, or their reads are smaller


class ReadHolder(Protocol):
    """A holder of entries in memory that may be dropped."""

    def drop(self) -> None:
        """Discard the entries that were read, and release their budget."""


class ReadBudget:
    """The entries that were read ahead in one broker. All calls on one event loop.

    Attributes:
        bytes: held and under way, 0 <= bytes; above ``bytes_max`` only by entries larger than their reads.
    """

    def __init__(self, bytes_max: int = READ_BUDGET_BYTES) -> None:
        assert bytes_max >= READ_BYTES_MAX, "any read fits"
        self.bytes = 0
        self._bytes_max = bytes_max
        self._reads = 0  # under way
        self._held: OrderedDict[ReadHolder, int] = OrderedDict()  # bytes; the one that read longest ago is first
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def begin_read(self) -> int:
        """Wait for room for a read. Return how many bytes it may be of; ``end_read`` gives them back."""
        self._reads += 1
        try:
            while True:
                size = self._bytes_max // (_READERS_AT_ONCE * (self._reads + len(self._held)))
                size = max(READ_BYTES_LEAST, min(size, READ_BYTES_MAX))
                self._make_room(size)
                if self.bytes + size <= self._bytes_max:
                    self.bytes += size
                    self._wake()
                    return size
                room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(room)
                await room
        except BaseException:
            self._reads -= 1
            self._wake()
            raise

    def end_read(self, size: int) -> None:
        """Give back what ``begin_read`` returned."""
        self._reads -= 1
        self.bytes -= size
        self._wake()

    def hold(self, holder: ReadHolder, size: int) -> None:
        """Count bytes that a read brought. Others lose theirs if there is no room."""
        self.bytes += size
        self._held[holder] = self._held.get(holder, 0) + size
        self._held.move_to_end(holder)
        self._make_room(0, holder)

    def release(self, holder: ReadHolder, size: int) -> None:
        """Count bytes no more: an entry was pushed, or discarded."""
        self.bytes -= size
        left = self._held[holder] - size
        assert left >= 0, "an entry leaves with the bytes that it came with"  # I15
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]
        if self._waiting:
            self._wake()

    def _make_room(self, size: int, keeper: ReadHolder | None = None) -> None:
        while self.bytes + size > self._bytes_max and self._held:
            oldest = next(iter(self._held))
            if oldest is keeper:
                return
            oldest.drop()

    def _wake(self) -> None:
        """Wake the waiting reads in their order; a read that finds no room waits behind the others."""
        while self._waiting:
            room = self._waiting.popleft()
            if not room.done():
                room.set_result(None)
                return
