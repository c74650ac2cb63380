"""Topics that nobody uses: what one costs in memory, how long it takes to open, and whether others feel it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import uvloop

import heliograph
from heliograph.aio.client import AsyncClient
from heliograph.cli.load import Load, Sender
from heliograph.cli.measure import Latencies
from tests.bench.bench import Bench
from tests.bench.figure import Limit, at_most
from tests.bench.private_cluster import PrivateCluster

SECTION = "idle topics"
BROKER = "broker-1"
TOPICS = 1_000
ONE_BY_ONE = 200  # of them opened without others beside, for the time that one takes
AT_ONCE = 8
WARM_TOPICS = 50
MESSAGES = 1_500  # of each look at the cost of a publish
SIZE = 1 << 10
BUDGET_KB = 200_000 / 10_000  # 200 MB for 10,000 topics


def report(bench: Bench) -> None:
    """Rows of the section."""
    bench.measure_limits()
    cluster = bench.cluster()
    bench.say("measuring idle topics on a broker that was just restarted")
    cluster.live.wait_back(BROKER, cluster.live.sigkill(BROKER))  # memory freed by earlier work would hide growth
    uvloop.run(_measure(bench, cluster))


async def _measure(bench: Bench, cluster: PrivateCluster) -> None:
    client = await heliograph.connect_async(namespace=cluster.namespace)
    try:
        await _open_all(client, (f"warm-{number}" for number in range(WARM_TOPICS)), AT_ONCE)
        few = await _publish_p50(bench, client)
        before = await asyncio.to_thread(cluster.memory_bytes)
        one_by_one, rest = bench.count(ONE_BY_ONE), bench.count(TOPICS - ONE_BY_ONE)
        latencies = await _open_all(client, (f"alone-{number}" for number in range(one_by_one)), 1)
        beside = await _open_all(client, (f"beside-{number}" for number in range(rest)), AT_ONCE)
        after = await asyncio.to_thread(cluster.memory_bytes)
        many = await _publish_p50(bench, client)
        spread = await _publish_rate(client, [f"beside-{number}" for number in range(rest)])
    finally:
        await client.close()
    topics = one_by_one + rest
    _add_memory(bench, before, after, topics)
    sync = Limit(bench.disk.append[4096].p50_ms, "append + fdatasync, 4 KiB, p50")
    p50 = latencies.percentile(0.5)
    more = {"p99_ms": latencies.percentile(0.99), "p50_of_8_at_once_ms": beside.percentile(0.5)}
    bench.add(SECTION, "creating and opening one, p50", p50, "ms", sync, aim=at_most(20), **more)
    against = Limit(few, f"with {WARM_TOPICS} topics")
    bench.add(SECTION, f"one publish in flight with {topics:,} idle topics, p50", many, "ms", against)
    name = f"one publish to each of {rest:,} topics in turn, {AT_ONCE} at once, each with a producer of its own"
    bench.add(SECTION, name, spread, "msgs/s", Limit(AT_ONCE / p50 * 1000, "creating and opening them"))


def _add_memory(bench: Bench, before: dict[str, int], after: dict[str, int], topics: int) -> None:
    grown = {kind: (after[kind] - before[kind]) / topics / 1e3 for kind in before}
    bench.add(
        SECTION,
        "broker's memory for one",
        grown["broker"],
        "kB",
        Limit(BUDGET_KB, "a ten-thousandth of 200 MB"),
        aim=at_most(BUDGET_KB),
        metadata_kb=grown["metadata"],
        all_bookies_kb=grown["bookie"],
        sample=f"{topics:,} topics",
    )


async def _open_all(client: AsyncClient, names: Iterator[str], at_once: int) -> Latencies:
    """Open a producer on each topic, which creates it, and close it again: the topic stays open and idle."""
    latencies = Latencies()

    async def open_some() -> None:
        for name in names:
            begun = time.perf_counter()
            producer = await client.producer(f"idle-{name}")
            latencies.add((time.perf_counter() - begun) * 1000)
            await producer.close()

    await asyncio.gather(*(open_some() for _ in range(at_once)))
    return latencies


async def _publish_rate(client: AsyncClient, names: list[str]) -> float:
    """Open a producer, publish once and close it, topic by topic: no topic is warm when its turn comes."""
    turn = iter(names)
    payload = bytes(SIZE)

    async def publish_some() -> None:
        for name in turn:
            async with client.producer(f"idle-{name}") as producer:
                await producer.send(payload)

    begun = time.perf_counter()
    await asyncio.gather(*(publish_some() for _ in range(AT_ONCE)))
    return len(names) / (time.perf_counter() - begun)


async def _publish_p50(bench: Bench, client: AsyncClient) -> float:
    async with client.producer("busy", batch_messages=1, linger_ms=0) as producer:
        run = await Sender(producer, Load(bench.count(MESSAGES), SIZE, 1, 0, 1, 0)).run()
    assert not run.errors, run.last_error
    return run.latencies.percentile(0.5)
