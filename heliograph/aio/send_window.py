"""The bound on what a producer has sent or queued and not yet had confirmed."""

from __future__ import annotations

import asyncio
from collections import deque


class SendWindow:
    """Counts messages and bytes; callers above either bound wait their turn, first come first served. # I15

    One request may exceed a bound by itself when nothing else is in the window: it could never go otherwise.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages = 0
        self.bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()

    def try_acquire(self, messages: int, size: int) -> bool:
        """Takes room if there is some and nobody waits for it."""
        if self._waiting or not self._fits(messages, size):
            return False
        self._take(messages, size)
        return True

    async def acquire(self, messages: int, size: int) -> None:
        """Takes room, waiting for it if necessary."""
        if self.try_acquire(messages, size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = (future, messages, size)
        self._waiting.append(turn)
        try:
            await future
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif future.done() and not future.cancelled():
                self.release(messages, size)
            self._admit()
            raise

    def release(self, messages: int, size: int) -> None:
        """Gives room back and lets those in that waited for it."""
        self.messages -= messages
        self.bytes -= size
        assert self.messages >= 0, "no more is given back than was taken"
        assert self.bytes >= 0, "no more is given back than was taken"
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            future, messages, size = self._waiting[0]
            if not future.cancelled() and not self._fits(messages, size):
                return
            self._waiting.popleft()
            if not future.done():
                self._take(messages, size)
                future.set_result(None)

    def _fits(self, messages: int, size: int) -> bool:
        if self.messages == 0 and self.bytes == 0:
            return True
        return self.messages + messages <= self._messages_max and self.bytes + size <= self._bytes_max

    def _take(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
