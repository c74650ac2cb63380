"""What all handles of one client share: connections, look-ups, retries, ids."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from heliograph.aio.backoff import Backoff
from heliograph.aio.lookup import Lookup
from heliograph.aio.pool import ConnectionPool
from heliograph.errors import Advice, HeliographError
from heliograph.options import ClientOptions
from heliograph.protocol.topic_name import TopicName

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class Session:
    """Lives in one event loop of one process.

    Args:
        random: source of jitter and of starting points.
    """

    def __init__(self, options: ClientOptions, random: Random) -> None:
        self.options = options
        self.random = random
        self.loop = asyncio.get_running_loop()
        self.pool = ConnectionPool(options)
        self.lookup = Lookup(options, self.pool, random)
        self._ids = itertools.count(1)

    def next_id(self) -> int:
        """A new id for a producer or consumer, unique over all connections of this client."""
        return next(self._ids)

    def backoff(self) -> Backoff:
        """Fresh pauses as the options want them."""
        return Backoff(self.options.retry_first_ms, self.options.retry_max_ms, self.random)

    async def partitions(self, topic: TopicName) -> int:
        """Partitions of ``topic``, asked with retries; 0 when it has none, or is itself a partition."""
        if topic.partition >= 0:
            return 0
        return await self.retry(lambda: self.lookup.partitions(topic))

    async def retry(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """Runs ``attempt`` until it succeeds, fails for good, or the operation timeout is over.

        Raises:
            HeliographError: of the last attempt, as soon as its advice is STOP or the time is up.
        """
        deadline = self.loop.time() + self.options.operation_timeout_ms / 1000
        backoff = self.backoff()
        while True:
            try:
                return await attempt()
            except HeliographError as error:
                pause = backoff.pause()
                if error.advice is Advice.STOP or self.loop.time() + pause > deadline:
                    raise
                _log.debug("trying again in %.3f s: %s", pause, error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Closes all connections."""
        await self.pool.close()
