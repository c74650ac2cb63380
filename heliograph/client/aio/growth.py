"""A watch for partitions that are added to a topic while a handle is open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from heliograph.base.errors import HeliographError
from heliograph.client.aio.session import ClientSession
from heliograph.protocol.topic_name import TopicName

Grown = Callable[[Sequence[TopicName]], Awaitable[None]]

log = logging.getLogger(__name__)


class GrowthWatch:
    """Asks brokers every ``partitions_update_ms`` how many partitions topics have, as long as a handle is open.

    Args:
        known: Partitions of each topic when the handle was opened. Topics with 0 are not watched: they never get any.
        grown: Awaited with the new partitions. If it raises, the same partitions are passed again at the next check.
    """

    def __init__(self, session: ClientSession, known: Mapping[TopicName, int], grown: Grown) -> None:
        self._session = session
        self._known = {topic: count for topic, count in known.items() if count > 0}
        self._grown = grown
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start checking, unless no topic is partitioned or the client's options turn it off."""
        if self._task is None and self._known and self._session.options.partitions_update_ms > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, topic: TopicName, count: int) -> None:
        """Watch another topic with ``count`` partitions, from now on."""
        if count > 0:
            self._known[topic] = count
            self.start()

    def forget(self, topic: TopicName) -> None:
        self._known.pop(topic, None)

    async def stop(self) -> None:
        """Stop checking. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def check(self) -> None:
        """Check every topic once.

        Raises:
            HeliographError: No broker can be asked, or the new partitions cannot be opened yet.
        """
        for topic, known in list(self._known.items()):
            count = await self._session.partitions(topic)
            if count > known:
                await self._grown(topic.partitions(count)[known:])
                if topic in self._known:
                    self._known[topic] = count

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._session.options.partitions_update_ms / 1000)
            try:
                await self.check()
            except HeliographError as error:
                log.info("cannot check for new partitions, retrying later: %s", error)
