"""The bound on what a producer has sent or queued and is not confirmed yet."""

from __future__ import annotations

import asyncio
from collections import deque


class SendWindow:
    """Counts messages and bytes. Callers above either bound wait, first come first served. # I15

    A single request above a bound is admitted when the window is empty; otherwise it could never be sent.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages = 0  # 0 <= messages <= messages_max, but for a single larger request
        self.bytes = 0  # 0 <= bytes <= bytes_max, but for a single larger request
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()

    def try_acquire(self, messages: int, size: int) -> bool:
        """Take room if there is enough and no caller waits for it; return whether it was taken."""
        if self._waiting or not self._fits(messages, size):
            return False
        self.messages += messages
        self.bytes += size
        return True

    async def acquire(self, messages: int, size: int) -> None:
        """Take room, waiting for it if necessary."""
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
        """Give room back and admit waiting callers that fit now."""
        self.messages -= messages
        self.bytes -= size
        assert self.messages >= 0, "no more is given back than was taken"
        assert self.bytes >= 0, "no more is given back than was taken"
        if self._waiting:
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
