"""Load reports of brokers: measured from the topics' counters and the process, written at a bounded rate."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from heliograph.actors.broker.balance.load_balancer import is_worth_writing
from heliograph.actors.broker.config import BalanceLimits
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import wall_ms
from heliograph.base.system.processes import resident_bytes
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError
from heliograph.metadata.model import BrokerLoad, BundleLoad
from heliograph.metadata.store import MetadataStore

BUNDLES_REPORTED_MAX = 1_000  # the busiest ones
LARGE_RECORDS_REPORTED_MAX = 10
REPORT_CHANGE = 0.05  # of the load; a report with a smaller change is not written
REPORT_ROUNDS_MAX = 6  # reports in a row that may not be written
MEASURE_SECONDS_MIN = 0.1  # rates over a shorter time are noise

_MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, slots=True)
class Counters:
    """What was published to a topic and delivered from it since it was loaded."""

    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int

    @staticmethod
    def of(topic: BrokerTopic) -> Counters:
        """Read the counters of a topic."""
        subscriptions = topic.subscriptions.values()
        return Counters(
            topic.messages_in,
            sum(subscription.messages_out for subscription in subscriptions),
            topic.ledger.bytes_added,
            sum(subscription.bytes_out for subscription in subscriptions),
        )


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
        self._before: dict[str, Counters] = {}  # by topic

    def look(self, topics: Iterable[BrokerTopic], owned: Iterable[str]) -> BrokerLoad:
        """Return the load since the last call."""
        now, cpu = self._clock(), self._cpu()
        seconds = max(now - self._at, MEASURE_SECONDS_MIN)
        before, after = self._before, {}
        flows = [0, 0, 0, 0]
        by_bundle: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])  # topics, messages, bytes
        for topic in topics:
            name = str(topic.name)
            found = after[name] = Counters.of(topic)
            last = before.get(name, _NOTHING)
            grown = (
                max(found.messages_in - last.messages_in, 0),  # a topic that was loaded again counts from 0
                max(found.messages_out - last.messages_out, 0),
                max(found.bytes_in - last.bytes_in, 0),
                max(found.bytes_out - last.bytes_out, 0),
            )
            for number, amount in enumerate(grown):
                flows[number] += amount
            row = by_bundle[topic.bundle]
            row[0] += 1
            row[1] += grown[0] + grown[1]
            row[2] += grown[2] + grown[3]
        paths_owned = set(owned)
        bundles = [
            BundleLoad(path, row[0], round(row[1] / seconds, 1), round(row[2] / seconds, 1))
            for path, row in ((path, by_bundle.get(path, [0, 0, 0])) for path in paths_owned)
        ]
        bundles.sort(key=lambda bundle: (-bundle.bytes_per_second, -bundle.topics, bundle.path))
        cpu_share = min((cpu - self._cpu_at) / seconds, 1.0)
        self._before, self._at, self._cpu_at = after, now, cpu
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
            len(after),
            len(paths_owned),
            tuple(bundles[:BUNDLES_REPORTED_MAX]),
            tuple(codec.large_records()[:LARGE_RECORDS_REPORTED_MAX]),
        )


class LoadReports:
    """Writes this broker's reports to metadata, and reads those of all brokers."""

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
    """Return the reports in metadata, by broker id."""
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
