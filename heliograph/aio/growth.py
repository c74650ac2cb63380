"""Noticing partitions that were added to a topic while a handle is open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from heliograph.aio.session import Session
from heliograph.errors import HeliographError
from heliograph.protocol.topic_name import TopicName

Grown = Callable[[Sequence[TopicName]], Awaitable[None]]

_log = logging.getLogger(__name__)


class GrowthWatch:
    """Asks at the client's interval how many partitions topics have, for as long as a handle is open.

    Args:
        known: how many each had when the handle was opened; topics without partitions get none later, and are left out.
        grown: awaited with the new partitions; what it raises is tried again at the next look.
    """

    def __init__(self, session: Session, known: Mapping[TopicName, int], grown: Grown) -> None:
        self._session = session
        self._known = {topic: count for topic, count in known.items() if count > 0}
        self._grown = grown
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on, if there is anything to look at."""
        if self._known and self._session.options.partitions_update_ms > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def look(self) -> None:
        """One look.

        Raises:
            HeliographError: brokers cannot be asked, or the new partitions cannot be used yet.
        """
        for topic, known in list(self._known.items()):
            count = await self._session.partitions(topic)
            if count > known:
                await self._grown(topic.partitions(count)[known:])
                self._known[topic] = count

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._session.options.partitions_update_ms / 1000)
            try:
                await self.look()
            except HeliographError as error:
                _log.info("partitions that may be new: %s", error)
