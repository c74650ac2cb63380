"""The bound on what a producer has sent or queued and is not confirmed yet, and the line of calls that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple


class WaitingCall(NamedTuple):
    """A call that has to wait: for the producer to open, for calls before it, or for room in the window."""

    call: asyncio.Future[None]  # done when it has ended
    turn: asyncio.Future[None]


class CallLine:
    """The calls of a producer that cannot go on at once, in the order in which they were made. # I2

    A call stays in the line until its messages are accepted, also while its task has not run yet after its wait ended.
    So no later call can pass it meanwhile.

    Attributes:
        turns: A future for each call; the first one's is done.
    """

    def __init__(self) -> None:
        self.turns: deque[asyncio.Future[None]] = deque()

    def join(self) -> asyncio.Future[None]:
        """Return a future that is done once all calls that joined before have left. Its caller has to leave."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.turns:
            turn.set_result(None)
        self.turns.append(turn)
        return turn

    def leave(self, turn: asyncio.Future[None]) -> None:
        """Let the next call go on, if it was this one's turn."""
        self.turns.remove(turn)
        if self.turns and not self.turns[0].done():  # it may be cancelled, and then leaves by itself
            self.turns[0].set_result(None)


class SendWindow:
    """Counts messages and bytes. A call above either bound waits; the line of calls lets one wait at a time. # I15

    A single request above a bound is admitted when the window is empty; otherwise it could never be sent.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages = 0  # 0 <= messages <= messages_max, but for a single larger request
        self.bytes = 0  # 0 <= bytes <= bytes_max, but for a single larger request
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._room: asyncio.Future[None] | None = None  # done when something was given back to the call that waits

    def try_acquire(self, messages: int, size: int) -> bool:
        """Take room if there is enough; return whether it was taken."""
        if (self.messages or self.bytes) and (
            self.messages + messages > self._messages_max or self.bytes + size > self._bytes_max
        ):
            return False
        self.messages += messages
        self.bytes += size
        return True

    async def acquire(self, messages: int, size: int) -> None:
        """Take room, waiting for it if necessary."""
        assert self._room is None, "one call waits at a time"
        while not self.try_acquire(messages, size):
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None

    def release(self, messages: int, size: int) -> None:
        """Give room back, and let the call that waits look again."""
        self.messages -= messages
        self.bytes -= size
        assert self.messages >= 0, "no more is given back than was taken"
        assert self.bytes >= 0, "no more is given back than was taken"
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
