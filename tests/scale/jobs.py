"""The rows of periodic work and of lists: what runs beside the data path, each with its goal."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.request import urlopen

from heliograph.actors.auditor.auditor import Auditor
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.broker.balance import inactive_topic_scan
from heliograph.actors.broker.limits.rates import SAMPLE_SECONDS, SAMPLES_KEPT
from heliograph.actors.broker.namespaces.records import NamespaceRecords
from heliograph.metadata.store import CHILDREN_PAGE_MAX
from heliograph.metrics.history import STEP_SECONDS
from heliograph.report.gathering import gather
from heliograph.report.record import REPORT_SECONDS
from tests.scale.cost import Cost
from tests.scale.filling import NAMESPACE, TENANT, topic_name
from tests.scale.row import Row, cpu, other, share, step
from tests.scale.site import Site

TOPICS, LEDGERS, OPEN = 1_000_000, 10_000_000, 50_000  # the goal's sizes
LISTING = f"/admin/v2/persistent/{TENANT}/{NAMESPACE}"
LOST_DELAY_MS = 10**9  # the bookies of synthetic ledgers do not exist
PAGE = 500
FOUND_SECONDS_MAX = 60.0
HOUR = 3_600.0
UNPACED = 1_000_000_000


def ready(site: Site) -> tuple[int, Cost]:
    """Ask the gateway whether the cluster is ready, as load balancers do."""
    return site.topics, _http(site, "/admin/v2/brokers/ready")


def page(site: Site) -> tuple[int, Cost]:
    """Ask for a page in the middle of the namespace's topics."""
    return site.topics, _http(site, f"{LISTING}?limit={PAGE}&after={_middle(site)}")


def search(site: Site) -> tuple[int, Cost]:
    """Ask for the topics whose names begin as a hundred of them do."""
    return site.topics, _http(site, f"{LISTING}?limit={PAGE}&prefix={_middle(site)[:-2]}")


def _middle(site: Site) -> str:
    """Return a topic in the middle, or before it, which at least a page of the store follows."""
    return topic_name(max(0, min(site.topics // 2, site.topics - 1 - CHILDREN_PAGE_MAX)))


def listing(site: Site) -> tuple[int, Cost]:
    """List all topics of the namespace, page by page."""
    admin = site.cluster.broker.admin

    async def ask() -> None:
        found = 0
        async for names in admin.topic_pages(f"{TENANT}/{NAMESPACE}"):
            found += len(names)
        assert found >= site.topics, "all are listed"

    return site.topics, site.cluster.cost(ask)


def created_beside_a_pattern(site: Site) -> tuple[int, Cost]:
    """Create a topic that a consumer by a pattern waits for, until the consumer has it."""
    cluster, numbers = site.cluster, itertools.count()

    async def measure() -> Cost:
        client = await cluster.client()
        consumer = await client.consumer(
            re.compile("fresh-.*"), "s", type="shared", initial_position="earliest", pattern_update_ms=1_000
        )
        try:

            async def create() -> None:
                name = f"fresh-{next(numbers)}"
                async with client.producer(name) as producer:
                    await producer.send(b"x")
                async with asyncio.timeout(FOUND_SECONDS_MAX):
                    await consumer.ack(await consumer.receive())

            await create()
            return await cluster.cost_here(create)
        finally:
            await consumer.close()
            await client.close()

    return site.topics, cluster.run(measure())


def inactive_scan(site: Site) -> tuple[int, Cost]:
    """Look for topics that no broker has loaded and for which something is due."""

    async def nothing(*_: object) -> None:
        pass

    async def measure() -> Cost:
        store, pace = await site.cluster.store(), inactive_topic_scan.READS_PER_SECOND_MAX
        inactive_topic_scan.READS_PER_SECOND_MAX = UNPACED
        catalog, namespace = site.cluster.broker._catalog, f"{TENANT}/{NAMESPACE}"
        records = NamespaceRecords(store, catalog)
        await records.set_policies(namespace, {"message_ttl_seconds": int(HOUR)})  # else no record is read
        try:
            scan = inactive_topic_scan.InactiveTopicScan(store, catalog, nothing, nothing)
            return await site.cluster.cost_here(scan.scan)
        finally:
            inactive_topic_scan.READS_PER_SECOND_MAX = pace
            await records.set_policies(namespace, {"message_ttl_seconds": 0})
            await store.close()

    return site.topics, site.cluster.run(measure())


def cluster_report(site: Site) -> tuple[int, Cost]:
    """Gather what the operator reports of the cluster."""

    async def measure() -> Cost:
        store = await site.cluster.store()
        try:
            return await site.cluster.cost_here(lambda: gather(store, ()))
        finally:
            await store.close()

    return site.topics, site.cluster.run(measure())


def _at_rest(site: Site, job: Callable[[], Awaitable[object]], rounds: int = 3) -> tuple[int, Cost]:
    """Return what a job costs once it has looked at all that the opening of the topics changed."""
    for _ in range(rounds):
        site.crowded.run(job())  # type: ignore[arg-type]  # jobs are coroutines
    return site.open, site.crowded.cost(job)


def load_report(site: Site) -> tuple[int, Cost]:
    load = site.crowded.broker._load
    assert load is not None, "it was started"
    return _at_rest(site, load.look)


def statistics(site: Site) -> tuple[int, Cost]:
    broker = site.crowded.broker

    async def ask() -> None:
        broker.statistics()

    return _at_rest(site, ask)


def housekeeping(site: Site) -> tuple[int, Cost]:
    return _at_rest(site, site.crowded.broker.upkeep.round)


def rates(site: Site) -> tuple[int, Cost]:
    return _at_rest(site, site.crowded.broker.topics.sample_rates, SAMPLES_KEPT + 1)


def history(site: Site) -> tuple[int, Cost]:
    broker = site.crowded.broker

    async def sample() -> None:
        await broker.topics.history.sample(broker.statistics(counts_topics=False))

    return _at_rest(site, sample)


def collector(site: Site) -> tuple[int, Cost]:
    """Tell the longest pause of Python's collector while the topics were opened, and that of a full collection then."""
    pause = site.crowded.longest_pause_ms
    began = time.process_time()
    gc.collect()
    full = (time.process_time() - began) * 1e3
    return site.open, Cost(full, max(pause, full))


def full_collection(site: Site) -> tuple[int, Cost]:
    """Run a round of a bookie that holds a ledger of each open topic."""
    running = site.crowded.bookie._running
    assert running is not None, "it was started"
    return site.open, site.crowded.cost(running.gc.collect)


def bookie_collection(site: Site) -> tuple[int, Cost]:
    """Run a round of garbage collection of a bookie that holds few of the ledgers."""
    running = site.cluster.bookie._running
    assert running is not None, "it was started"
    return site.ledgers, site.cluster.cost(running.gc.collect)


class NoHoles:
    """Ledgers whose copies are all there."""

    async def check(self, ledger_id: int) -> Collection[str]:
        return frozenset()


def audit(site: Site) -> tuple[int, Cost]:
    """Audit all ledgers: from nothing until all are known, then again when nothing has changed."""
    cluster = site.cluster

    async def measure() -> Cost:
        store = await cluster.store()
        ledgers: Any = NoHoles()
        auditor = Auditor(store, ledgers, AuditorConfig(lost_bookie_delay_ms=LOST_DELAY_MS), lambda: None)
        await auditor.membership.start()
        try:
            gc.collect()
            began = time.process_time()
            await auditor.audit()
            while not auditor._follower.is_complete:
                await auditor.audit()
            first = time.process_time() - began
            held = size_of(auditor._follower.index)
            again = await cluster.cost_here(auditor.audit)
        finally:
            auditor.membership.stop()
            auditor._follower.stop()
            await store.close()
        more = {"first": first, "memory": held / site.ledgers}
        return Cost(again.cpu_ms, again.step_ms, again.calls, again.store_bytes, again.steps, more)

    return site.ledgers, cluster.run(measure())


def size_of(something: object) -> int:
    """Return the bytes of an object and of all that it holds, each counted as often as it is held."""
    size = sys.getsizeof(something)
    if isinstance(something, dict):
        size += sum(size_of(key) + size_of(value) for key, value in something.items())
    elif isinstance(something, list | tuple | set | frozenset):
        size += sum(map(size_of, something))
    else:
        names = [*getattr(something, "__dict__", ()), *getattr(type(something), "__slots__", ())]
        size += sum(size_of(getattr(something, name)) for name in names)
    return size


def _http(site: Site, path: str) -> Cost:
    url = site.cluster.parts.http_url + path

    def get() -> bytes:
        with urlopen(url) as answer:
            body: bytes = answer.read()
            return body

    async def ask() -> None:
        await asyncio.to_thread(get)

    site.cluster.run(ask())  # the first caller has the gateway loaded
    return site.cluster.cost(ask)


ROWS = (
    Row("health and readiness", "topics", ready, (cpu(20, TOPICS), step(TOPICS)), is_flat=True),
    Row("page of a list", "topics", page, (cpu(50, TOPICS), step(TOPICS)), is_flat=True),
    Row("search by a prefix", "topics", search, (cpu(20, TOPICS), step(TOPICS)), is_flat=True),
    Row("list in pages", "topics", listing, (step(TOPICS),)),
    Row("topic beside a pattern", "topics", created_beside_a_pattern, (cpu(50, TOPICS), step(TOPICS)), is_flat=True),
    Row("inactive-topic scan", "topics", inactive_scan, (share(HOUR, TOPICS), step(TOPICS))),
    Row("report of the cluster", "topics", cluster_report, (share(REPORT_SECONDS, TOPICS), step(TOPICS)), is_flat=True),
    Row("a bookie's collection", "ledgers", bookie_collection, (share(60, LEDGERS), step(LEDGERS)), is_flat=True),
    Row(
        "audit", "ledgers", audit,
        (share(60, LEDGERS), step(LEDGERS), other("first", "s", 1_800, LEDGERS), other("memory", "bytes", 40, LEDGERS)),
    ),
    Row("load report", "open topics", load_report, (share(10, OPEN), step(OPEN)), is_flat=True),
    Row("statistics of a broker", "open topics", statistics, (share(15, OPEN), step(OPEN)), is_flat=True),
    Row("housekeeping", "open topics", housekeeping, (share(10, OPEN), step(OPEN)), is_flat=True),
    Row("rates", "open topics", rates, (share(SAMPLE_SECONDS, OPEN), step(OPEN)), is_flat=True),
    Row("history", "open topics", history, (share(STEP_SECONDS, OPEN), step(OPEN))),
    Row("Python's collector", "open topics", collector, (step(OPEN),), runs_small=False),
    Row("collection of held ledgers", "open topics", full_collection, (share(60, OPEN), step(OPEN))),
)  # fmt: skip
