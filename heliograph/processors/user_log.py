"""The log of a processor: lines of its handlers and of their failures, as messages of a topic."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from typing_extensions import override

from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient

LINE_CHARACTERS_MAX = 4_000
LINES_MAX = 1_000  # that wait to be published; further ones are dropped # I15
LEVEL = "level"  # property of a line


class UserLog(logging.Handler):
    """Publishes the lines logged to ``logger`` in the background; lines that cannot be published are dropped.

    Attributes:
        logger: Given to handlers as ``context.log``. Its lines go to the process's own log as well.
    """

    def __init__(self, client: AsyncClient, topic: str, name: str) -> None:
        super().__init__(logging.INFO)
        self.logger = logging.getLogger(f"heliograph.processor.{name}")
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(self)
        self._loop = asyncio.get_running_loop()
        self._producer = client.producer(topic, pending_messages_max=LINES_MAX, send_timeout_ms=10_000)
        self._lines: asyncio.Queue[tuple[str, str]] = asyncio.Queue(LINES_MAX)
        self._publishing: asyncio.Task[None] | None = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)[:LINE_CHARACTERS_MAX]
        except Exception:  # arguments of the user that do not fit the text
            line = str(record.msg)[:LINE_CHARACTERS_MAX]
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._keep, line, record.levelname)

    async def end(self) -> None:
        """Publish what waits, and publish nothing any more."""
        self.logger.removeHandler(self)
        await asyncio.sleep(0)  # lines of threads are on the loop
        if self._publishing is not None:
            await self._publishing
        await self._producer.close()

    def _keep(self, line: str, level: str) -> None:
        if self._lines.full():
            return
        self._lines.put_nowait((line, level))
        if self._publishing is None or self._publishing.done():
            self._publishing = self._loop.create_task(self._publish())

    async def _publish(self) -> None:
        while not self._lines.empty():
            line, level = self._lines.get_nowait()
            try:
                await self._producer.send(line, properties={LEVEL: level}, event_time_ms=wall_ms())
            except HeliographError:
                return
