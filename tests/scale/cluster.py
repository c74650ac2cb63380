"""A cluster in this process on a store that was filled before, and access to its parts for the rows."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from typing_extensions import override

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.session import BrokerSessions
from heliograph.base.loop_thread import LoopThread
from heliograph.client.access import connect_async
from heliograph.client.aio.client import AsyncClient
from heliograph.metadata.connect import connect_store
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName
from heliograph.standalone.config import StandaloneConfig
from heliograph.standalone.directory import StandaloneDirectory
from heliograph.standalone.parts import StandaloneParts
from tests.scale.cost import Cost, StoreCounter, cost_of

OPENED_AT_ONCE = 16
HOURS = 3_600.0  # periodic work runs when a row asks for it

T = TypeVar("T")


class KnownParts(StandaloneParts):
    """The parts, of which the rows see the broker."""

    sessions: BrokerSessions

    @override
    async def _start_broker(self) -> BrokerSessions:
        self.sessions = await super()._start_broker()
        return self.sessions


class ScaleCluster:
    """One process with all parts, whose periodic work runs only when a row asks for it. A context manager.

    Attributes:
        opened: topics that the broker has loaded.
        longest_pause_ms: processor time of the longest collection of Python's while they were loaded.
    """

    def __init__(self, directory: Path, *, counts_steps: bool = False) -> None:
        self.opened = 0
        self.longest_pause_ms = 0.0
        self._collecting_since = 0.0
        self._counts_steps = counts_steps
        quiet = {
            "load_report_seconds": HOURS, "housekeeping_seconds": HOURS, "balance_seconds": HOURS,
            "orphan_sweep_seconds": HOURS, "inactive_topic_scan_seconds": HOURS, "probe_seconds": 0.0,
            "split": {"topics": 0},
        }  # fmt: skip
        config = StandaloneConfig(broker=quiet, bookie={"gc_interval_ms": int(HOURS * 1e3)})
        self._directory = StandaloneDirectory(directory)
        self._thread = LoopThread("scale")
        self.parts = KnownParts(config, self._directory, _failed)
        self.run(self.parts.start())
        assert self.parts._metadata is not None, "it was started"
        assert self.parts._metadata._service is not None, "it was started"
        self._counter = StoreCounter(self.parts._metadata._service)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the parts."""
        return self._thread.run(work)

    async def cost_here(self, job: Callable[[], Awaitable[object]]) -> Cost:
        """Return what one run of a job costs, for a caller on the loop of the parts."""
        return await cost_of(job, self._counter, counts_steps=self._counts_steps)

    def cost(self, job: Callable[[], Awaitable[object]]) -> Cost:
        """Return what one run of a job costs. It runs twice."""
        return self.run(self.cost_here(job))

    @property
    def broker(self) -> Broker:
        return self.parts.sessions.broker

    @property
    def bookie(self) -> Bookie:
        return self.parts._bookies["bookie-1"]

    async def store(self) -> MetadataStore:
        """Return a new session with the store; the caller closes it."""
        return await connect_store(self.parts._metadata_url)

    async def client(self) -> AsyncClient:
        """Return a client on the loop of the parts."""
        return await connect_async(self.parts.service_url)

    def open(self, count: int) -> None:
        """Have the broker load so many topics, each with a subscription, as an owner of topics at rest has them."""
        names = iter([TopicName.parse(f"open-{number}") for number in range(self.opened, count)])

        async def open_some() -> None:
            for name in names:
                await self.broker.ownership.resolve(name)
                topic = await self.broker.topics.get(name, may_create=True)
                await topic.subscribe("s", start=0)

        async def open_all() -> None:
            await asyncio.gather(*(open_some() for _ in range(OPENED_AT_ONCE)))

        gc.collect()
        gc.freeze()  # what other rows have in this process, no broker has
        gc.callbacks.append(self._on_collection)
        try:
            self.run(open_all())
        finally:
            gc.callbacks.remove(self._on_collection)
        self.opened = max(self.opened, count)

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._collecting_since = now
        else:
            self.longest_pause_ms = max(self.longest_pause_ms, (now - self._collecting_since) * 1e3)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.parts.stop())
        finally:
            self._thread.close()
            self._directory.release()
            gc.unfreeze()


def _failed(error: BaseException) -> None:
    raise RuntimeError("a part failed") from error
