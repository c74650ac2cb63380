"""Ten thousand topics: the memory of each, the time to open one, and the rate of publishing to all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import uvloop

import heliograph
from heliograph.cli.messages.load import MessageLoad, Sender
from heliograph.cli.messages.measure import Latencies
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.protocol.message_id import MessageId
from tests.bench.bench import Bench
from tests.bench.broker.private_cluster import PrivateCluster
from tests.bench.figure import Limit, at_most, ratio_at_most

SECTION = "many topics"
BROKER = "broker-1"
TOPICS = 10_000
ONE_BY_ONE = 200  # of them opened without others beside, for the time that one takes; these are the cold ones later
AT_ONCE = 16  # of the others
WARM_TOPICS = 50
MESSAGES = 1_500  # of each measurement of the cost of a publish
ROUNDS = 3  # over all topics
IN_FLIGHT = 1_000  # messages
SIZE = 1 << 10
BUDGET_KB = 200_000 / TOPICS  # 200 MB for all


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    bench.measure_limits()
    cluster = bench.cluster()
    bench.say("measuring many topics on a broker that was just restarted")
    cluster.live.wait_back(BROKER, cluster.live.sigkill(BROKER))  # memory that earlier sections freed would hide growth
    uvloop.run(_measure(bench, cluster))


async def _measure(bench: Bench, cluster: PrivateCluster) -> None:
    client = await heliograph.connect_async(namespace=cluster.namespace)
    cold = [f"cold-{number}" for number in range(bench.count(ONE_BY_ONE))]
    rest = [f"open-{number}" for number in range(bench.count(TOPICS) - len(cold))]
    try:
        warm, _ = await _open(client, [f"warm-{number}" for number in range(WARM_TOPICS)], AT_ONCE)
        await _close(warm)
        few = await _publish_p50(bench, client)
        before = await asyncio.to_thread(cluster.memory_bytes)
        producers, alone = await _open(client, cold, 1)
        await _close(producers)
        begun = time.perf_counter()
        producers, _ = await _open(client, rest, AT_ONCE)
        per_second = len(rest) / (time.perf_counter() - begun)
        after = await asyncio.to_thread(cluster.memory_bytes)
        _add_opening(bench, before, after, alone, len(cold) + len(rest), per_second)
        many = await _publish_p50(bench, client)
        name = f"one publish in flight with {len(cold) + len(rest):,} topics open, p50"
        bench.add(SECTION, name, many, "ms", Limit(few, f"with {WARM_TOPICS} topics"))
        await _add_rate(bench, producers)
        await _add_cold(bench, client, cluster, cold, alone)
    finally:
        await client.close()


def _add_opening(
    bench: Bench, before: dict[str, int], after: dict[str, int], alone: Latencies, topics: int, per_second: float
) -> None:
    grown = {kind: (after[kind] - before[kind]) / topics / 1e3 for kind in before}
    bench.add(
        SECTION,
        f"broker's memory for one of {topics:,}, with a producer",
        grown["broker"],
        "kB",
        Limit(BUDGET_KB, "a ten-thousandth of 200 MB"),
        aim=at_most(BUDGET_KB),
        metadata_kb=grown["metadata"],
        all_bookies_kb=grown["bookie"],
    )
    sync = Limit(bench.disk.append[4096].p50_ms, "append + fdatasync, 4 KiB, p50")
    more = {"p99_ms": alone.percentile(0.99), f"per_second_{AT_ONCE}_at_once": per_second}
    bench.add(
        SECTION, "creating and opening one, p50", alone.percentile(0.5), "ms", sync, aim=ratio_at_most(130), **more
    )


async def _add_rate(bench: Bench, producers: Sequence[AsyncProducer]) -> None:
    """Publish to the topics in rotation: no two consecutive messages share a ledger."""
    payload, room = bytes(SIZE), asyncio.Semaphore(IN_FLIGHT)
    failures: list[BaseException] = []

    def done(confirmed: asyncio.Future[MessageId]) -> None:
        room.release()
        if (error := confirmed.exception()) is not None:
            failures.append(error)

    begun = time.perf_counter()
    for _ in range(ROUNDS):
        for producer in producers:
            await room.acquire()
            (await producer.enqueue(payload)).add_done_callback(done)
    await asyncio.gather(*(producer.flush() for producer in producers))
    assert not failures, failures[0]
    rate = ROUNDS * len(producers) / (time.perf_counter() - begun)
    name = f"publishing to {len(producers):,} topics in turn, {IN_FLIGHT:,} in flight"
    bench.add(SECTION, name, rate, "msgs/s", bench.peer.small_rate)


async def _add_cold(
    bench: Bench, client: AsyncClient, cluster: PrivateCluster, names: Sequence[str], alone: Latencies
) -> None:
    """Measure topics that no broker has in memory: from the request for a producer to the first receipt."""
    latencies, payload = Latencies(), bytes(SIZE)
    for name in names:
        await asyncio.to_thread(cluster.live.admin.unload_topic, name)
        begun = time.perf_counter()
        async with client.producer(name) as producer:
            await producer.send(payload)
            latencies.add((time.perf_counter() - begun) * 1000)
    against = Limit(alone.percentile(0.5), "creating and opening one")
    p50, p99 = latencies.percentile(0.5), latencies.percentile(0.99)
    bench.add(SECTION, "first publish on a cold topic, p50", p50, "ms", against, p99_ms=p99)


async def _open(client: AsyncClient, names: Sequence[str], at_once: int) -> tuple[list[AsyncProducer], Latencies]:
    """Open a producer on each topic, which creates it."""
    latencies, producers, turn = Latencies(), list[AsyncProducer](), iter(names)

    async def open_some() -> None:
        for name in turn:
            begun = time.perf_counter()
            producers.append(await client.producer(name, batch_messages=1))
            latencies.add((time.perf_counter() - begun) * 1000)

    await asyncio.gather(*(open_some() for _ in range(at_once)))
    return producers, latencies


async def _close(producers: Sequence[AsyncProducer]) -> None:
    for producer in producers:
        await producer.close()


async def _publish_p50(bench: Bench, client: AsyncClient) -> float:
    async with client.producer("busy", batch_messages=1, linger_ms=0) as producer:
        run = await Sender(producer, MessageLoad(bench.count(MESSAGES), SIZE, 1, 0, 1, 0)).run()
    assert not run.errors, run.last_error
    return run.latencies.percentile(0.5)
