"""Load reports of brokers: measured from the topics' counters and the process, written at a bounded rate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from heliograph.actors.broker.balance.load_balancer import is_worth_writing
from heliograph.actors.broker.config import BalanceLimits
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.records.activity import ChangedTopics, TopicActivity
from heliograph.actors.broker.topic.stats import TOPICS_A_TURN
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import wall_ms
from heliograph.base.system.processes import resident_bytes
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError
from heliograph.metadata.model import BrokerLoad, BundleLoad
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

BUNDLES_REPORTED_MAX = 1_000  # the busiest ones
LARGE_RECORDS_REPORTED_MAX = 10
REPORT_CHANGE = 0.05  # of the load; a report with a smaller change is not written
REPORT_ROUNDS_MAX = 6  # reports in a row that may not be written
MEASURE_SECONDS_MIN = 0.1  # rates over a shorter time are noise

_MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts of messages published to a topic and delivered from it since it was loaded."""

    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int

    @staticmethod
    def of(topic: BrokerTopic) -> Counters:
        subscriptions = topic.subscriptions.values()
        return Counters(
            topic.messages_in,
            sum(subscription.messages_out for subscription in subscriptions),
            topic.ledger.bytes_added,
            sum(subscription.bytes_out for subscription in subscriptions),
        )


class MeasuredTopics(Protocol):
    """The part of ``Topics`` that the meter needs."""

    load: ChangedTopics

    @property
    def count(self) -> int:
        """Return how many topics are loaded."""

    def count_of_bundle(self, path: str) -> int:
        """Return how many topics of a bundle are loaded."""

    def find(self, name: TopicName) -> BrokerTopic | None:
        """Return the topic if it is loaded."""


class LoadMeter:
    """Measures the load between two calls of ``look``.

    Args:
        clock: returns seconds of a monotonic clock.
        cpu: returns the processor seconds that this process has used.
    """

    def __init__(
        self, broker_id: str, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self._cpu = cpu
        self._at = clock()
        self._cpu_at = cpu()
        self._before: dict[TopicActivity, Counters] = {}  # of loaded topics in which something ever happened

    async def look(self, topics: MeasuredTopics, owned: Iterable[str]) -> BrokerLoad:
        """Return the load since the last call. Only topics in which something happened are looked at, in turns of the
        event loop."""
        now, cpu = self._clock(), self._cpu()
        seconds = max(now - self._at, MEASURE_SECONDS_MIN)
        flows = [0, 0, 0, 0]
        by_bundle: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])  # messages, bytes
        for number, activity in enumerate(topics.load.take()):
            if number % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
            last = self._before.pop(activity, _NOTHING)
            topic = topics.find(activity.name)
            if topic is None or topic.activity is not activity:
                continue
            found = self._before[activity] = Counters.of(topic)
            grown = (
                max(found.messages_in - last.messages_in, 0),
                max(found.messages_out - last.messages_out, 0),
                max(found.bytes_in - last.bytes_in, 0),
                max(found.bytes_out - last.bytes_out, 0),
            )
            for number, amount in enumerate(grown):
                flows[number] += amount
            row = by_bundle[topic.bundle]
            row[0] += grown[0] + grown[1]
            row[1] += grown[2] + grown[3]
        paths_owned = set(owned)
        bundles = [
            BundleLoad(path, topics.count_of_bundle(path), round(row[0] / seconds, 1), round(row[1] / seconds, 1))
            for path, row in ((path, by_bundle.get(path, [0, 0])) for path in paths_owned)
        ]
        bundles.sort(key=lambda bundle: (-bundle.bytes_per_second, -bundle.topics, bundle.path))
        cpu_share = min((cpu - self._cpu_at) / seconds, 1.0)
        self._at, self._cpu_at = now, cpu
        messages_in, messages_out, bytes_in, bytes_out = (round(amount / seconds, 1) for amount in flows)
        return BrokerLoad(
            self._broker_id,
            wall_ms(),
            round(cpu_share, 3),
            round(memory_share(), 3),
            messages_in,
            messages_out,
            bytes_in,
            bytes_out,
            topics.count,
            len(paths_owned),
            tuple(bundles[:BUNDLES_REPORTED_MAX]),
            tuple(codec.large_records()[:LARGE_RECORDS_REPORTED_MAX]),
        )


class LoadReports:
    """Writes this broker's reports to metadata, and reads the reports of all brokers."""

    def __init__(self, store: MetadataStore, ownership: Ownership, limits: BalanceLimits) -> None:
        self._store = store
        self._path = paths.broker_load(ownership.registration.broker_id)
        self.limits = limits
        self._written: BrokerLoad | None = None
        self._skipped = 0
        self.latest: BrokerLoad | None = None

    async def offer(self, report: BrokerLoad) -> bool:
        """Write the report unless it has no news. Return whether it was written.

        Raises:
            ConnectionLossError, SessionExpiredError.
        """
        self.latest = report
        is_due = self._skipped >= REPORT_ROUNDS_MAX or is_worth_writing(
            self._written, report, self.limits, REPORT_CHANGE
        )
        if not is_due:
            self._skipped += 1
            return False
        value = codec.encode(report)
        try:
            stat = await self._store.set(self._path, value)
            if stat.ephemeral_owner != self._store.session_id:  # of a predecessor, whose session is ending
                await self._store.delete(self._path)
                await self._store.create(self._path, value, ephemeral=True, parents=True)
        except NoNodeError:
            with contextlib.suppress(NodeExistsError):
                await self._store.create(self._path, value, ephemeral=True, parents=True)
        self._written, self._skipped = report, 0
        return True

    async def all(self) -> dict[str, BrokerLoad]:
        return await read_loads(self._store)


async def read_loads(store: MetadataStore) -> dict[str, BrokerLoad]:
    found: dict[str, BrokerLoad] = {}
    with contextlib.suppress(NoNodeError):
        for name in await store.children(paths.BROKER_LOADS):
            with contextlib.suppress(NoNodeError):
                value, _ = await store.get(f"{paths.BROKER_LOADS}/{name}")
                report = codec.decode(BrokerLoad, value)
                found[report.broker_id] = report
    return found


def memory_share() -> float:
    """Return the share of the machine's memory that this process uses."""
    return resident_bytes() / _MEMORY_BYTES


_NOTHING = Counters(0, 0, 0, 0)
