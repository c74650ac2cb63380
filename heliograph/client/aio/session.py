"""The session that all handles of one client share: connections, lookups, retries and ids."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol, Self, TypeVar

from heliograph.base.backoff import Backoff
from heliograph.base.errors import Advice, HeliographError, RequestTimeoutError, TooFewBookiesError
from heliograph.base.guard.shares import UnpackBudget
from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.aio.in_hand import InHand
from heliograph.client.aio.transport.lookup import Lookup
from heliograph.client.aio.transport.pool import ConnectionPool
from heliograph.client.options import ClientOptions
from heliograph.protocol.topic_name import TopicName

REGISTERING_MAX = 256  # handles of a client that look up their owner and register there at once: 64 at each of four
TURN_SECONDS = 5.0  # after which a handle that registers keeps no other one waiting

_Result = TypeVar("_Result")
log = logging.getLogger(__name__)


class Turn:
    """The turn of a handle that registers. Use it as a context manager."""

    def __init__(self, free: asyncio.Semaphore, loop: asyncio.AbstractEventLoop) -> None:
        """Callers use ``Registering.turn``."""
        self._free: asyncio.Semaphore | None = free
        self._timer = loop.call_later(TURN_SECONDS, self.end)

    def end(self) -> None:
        """Let the next handle begin. Idempotent."""
        self._timer.cancel()
        if (free := self._free) is not None:
            self._free = None
            free.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Registering:
    """Has the handles of a client register a few at a time, in the order in which they ask.

    All handles of a broker that died come back together. A broker reads what the first ones publish behind the commands
    by which others register, so the last ones wait here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = asyncio.Semaphore(REGISTERING_MAX)

    async def turn(self, topic: TopicName, within_ms: int | None) -> Turn:
        """Wait for the turn of a handle.

        Args:
            within_ms: how long to wait; None: as long as it takes.

        Raises:
            RequestTimeoutError: it did not come in time.
        """
        try:
            async with asyncio.timeout(None if within_ms is None else within_ms / 1000):
                await self._free.acquire()
        except TimeoutError:
            told = f"the owner of {topic} was not asked for: {REGISTERING_MAX} other handles have no answer"
            raise RequestTimeoutError(told, limit=f"{within_ms} ms") from None
        return Turn(self._free, self._loop)


class ClientSession:
    """The connections, lookups and ids of one client, in one event loop of one process.

    Args:
        random: Source of jitter and of the partitions that producers start with.
    """

    def __init__(self, options: ClientOptions, random: Random) -> None:
        self.options = options
        self.random = random
        self.unpacked: UnpackBudget | None = None  # of the client; None: consumers unpack as much as they like
        self.loop = asyncio.get_running_loop()
        self.pool = ConnectionPool(options)
        self.lookup = Lookup(options, self.pool, random)
        self.pool.on_silent = self.lookup.suspect
        self.registering = Registering(self.loop)
        self.in_hand = InHand()
        self._ids = itertools.count(1)

    def next_id(self) -> int:
        """Return a new id for a producer or consumer, unique over all connections of this client."""
        return next(self._ids)

    def backoff(self) -> Backoff:
        """Return new pauses between attempts, as the options say."""
        return Backoff(self.options.retry_first_ms, self.options.retry_max_ms, self.random)

    async def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions of ``topic``, with retries; 0 if it has none or is itself a partition."""
        if topic.partition >= 0:
            return 0
        return await self.retry(lambda: self.lookup.partitions(topic))

    async def retry(self, attempt: Callable[[], Awaitable[_Result]], too_few_bookies_ms: int | None = None) -> _Result:
        """Run ``attempt`` until it succeeds, fails for good, or the operation timeout is over.

        Args:
            too_few_bookies_ms: the timeout while too few bookies take entries; None: the same.

        Raises:
            HeliographError: The failure of the last attempt: its advice is STOP, or the time is up.
        """
        begun, timeout_ms = self.loop.time(), self.options.operation_timeout_ms
        backoff = self.backoff()
        while True:
            try:
                return await attempt()
            except HeliographError as error:
                pause = backoff.pause()
                if too_few_bookies_ms is not None and isinstance(error, TooFewBookiesError):
                    timeout_ms = min(timeout_ms, too_few_bookies_ms)
                if error.advice is Advice.STOP or self.loop.time() + pause > begun + timeout_ms / 1000:
                    raise
                log.debug("trying again in %.3f s: %s", pause, error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        await self.lookup.close()
        await self.pool.close()


class HandleOwner(Protocol):
    """The client as its handles see it; ``AsyncClient`` is one. It is part of the handle's pickle."""

    async def session(self) -> ClientSession:
        """Return what all handles of the client share; open the client first if it is not open yet."""

    def adopt(self, handle: AsyncHandle) -> None:
        """Register a handle in use, to be closed with the client."""

    def release(self, handle: AsyncHandle) -> None:
        """Forget a handle that was closed or is not in use."""
