"""The periodic measurement of this broker's load: it is reported, and bundles that are too large are split."""

from __future__ import annotations

import asyncio
import logging

from heliograph.actors.broker.balance.bundle_changes import BundleChanges
from heliograph.actors.broker.balance.load_balancer import load_of
from heliograph.actors.broker.balance.load_report import LoadMeter, LoadReports
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.topic.topics import Topics
from heliograph.base.errors import HeliographError
from heliograph.base.interval import Interval
from heliograph.metadata.errors import SessionExpiredError
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class LoadWatch:
    """Measures at intervals. All calls on one event loop.

    Attributes:
        load: of the last measurement (``load_balancer.load_of``).
        splits_total: bundles that were split because they were too large.
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
        self._interval = Interval(config.load_report_seconds)
        self._task: asyncio.Task[None] | None = None
        self.load = 0.0
        self.splits_total = 0

    def configure(self, config: BrokerConfig) -> None:
        """Measure and split by changed settings from now on."""
        self._config = config
        self._reports.limits = config.balance
        self._interval.set(config.load_report_seconds)

    def start(self) -> None:
        """Begin to measure at intervals."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def look(self) -> None:
        """Measure and report the load once, and split bundles that are too large.

        Raises:
            ConnectionLossError, SessionExpiredError.
        """
        report = await self._meter.look(self._topics, self._ownership.owned)
        self.load = load_of(report, self._config.balance)
        await self._reports.offer(report)
        self.splits_total += await self._changes.split_large(report, self._config.split, self._config.balance)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except SessionExpiredError:
                return
            except HeliographError as error:
                log.warning("the load could not be reported: %s", error)
            await self._interval.passes()
