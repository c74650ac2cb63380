"""Looks at this broker's load at a fixed pace: reports it, and splits bundles that became too large."""

from __future__ import annotations

import asyncio
import logging

from actors.broker.bundle_changes import BundleChanges
from actors.broker.config import BrokerConfig
from actors.broker.load_balancer import load_of
from actors.broker.load_report import LoadMeter, LoadReports
from actors.broker.ownership import Ownership
from actors.broker.topics import Topics
from heliograph.errors import HeliographError
from metadata.errors import SessionExpiredError
from metadata.store import MetadataStore

log = logging.getLogger(__name__)


class LoadWatch:
    """All calls on one event loop.

    Attributes:
        load: as of the last look, see ``load_balancer.load_of``.
        splits_total: bundles that were split because of their size.
    """

    def __init__(
        self, store: MetadataStore, ownership: Ownership, topics: Topics, changes: BundleChanges, config: BrokerConfig
    ) -> None:
        self._ownership = ownership
        self._topics = topics
        self._changes = changes
        self._config = config
        self._meter = LoadMeter(config.broker_id)
        self._reports = LoadReports(store, ownership, config.balance)
        self._task: asyncio.Task[None] | None = None
        self.load = 0.0
        self.splits_total = 0

    def start(self) -> None:
        """Look from now on."""
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
            ConnectionLossError, SessionExpiredError.
        """
        report = self._meter.look(self._topics.loaded, self._ownership.owned)
        self.load = load_of(report, self._config.balance)
        await self._reports.offer(report)
        self.splits_total += await self._changes.split_large(report, self._config.split)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("the load report: %s", error)
            await asyncio.sleep(self._config.load_report_seconds)
