"""A lone message beside a cold backlog: what other topics of a broker wait while three consumers read it.

The page cache of the kernel is asked to forget the bookies' files before each read, so that reads come from the disk.
Clients and servers share the cores of this machine: at full speed the readers take all of them, and a message then
waits for a core as much as for the broker. Readers with a pace leave some, and show what the broker itself adds.
The kernel tells what the event loops of client and broker waited for a core; a row has the latencies without that.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

import heliograph
from heliograph.cli.messages.measure import Latencies, MeasuredRun
from heliograph.client import discovery
from heliograph.client.aio.client import AsyncClient
from tests.bench.bench import Bench
from tests.bench.broker.consume import fill, reader
from tests.bench.broker.private_cluster import PrivateCluster
from tests.bench.broker.publish import SIZE
from tests.bench.figure import Limit, at_most
from tests.bench.process import TICKS_PER_SECOND, Child, busy_ticks, precise_cpu_seconds

SECTION = "cold"
BACKLOG_TOPIC, LONE_TOPIC = "cold-backlog", "cold-lone"
READERS = 3
PACES = (0.0, 20.0)  # MB/s of each reader, 0: as fast as it can
LONE_RATE = 200  # messages per second at most
LONE_MS_MAX = 5.0
ALONE_MESSAGES = 2_000
READ_SECONDS_MAX = 600.0
PACED_SECONDS_MAX = 15.0


@dataclass
class LoneRun(MeasuredRun):
    """Messages one after the other. ``unhindered``: their latencies without what both event loops waited for a core."""

    unhindered: Latencies = field(default_factory=Latencies)


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    cluster = bench.cluster()
    bench.say(f"filling a backlog of {bench.backlog_bytes / 1e9:.2f} GB")
    uvloop.run(fill(cluster, BACKLOG_TOPIC, bench.backlog_bytes // SIZE))
    alone = uvloop.run(_lone_messages(cluster, bench.count(ALONE_MESSAGES), []))
    _add(bench, "alone", alone, alone, {})
    for pace in PACES:
        bench.say(f"{READERS} readers of the backlog, {f'{pace:.0f} MB/s each' if pace else 'at full speed'}")
        _forget_pages(bench.directory)
        _measure(bench, cluster, pace, alone)


def _measure(bench: Bench, cluster: PrivateCluster, pace: float, alone: LoneRun) -> None:
    broker = _broker_of(cluster)
    seconds = PACED_SECONDS_MAX if pace else READ_SECONDS_MAX
    readers = [reader("ours", cluster, BACKLOG_TOPIC, "earliest", seconds, pace) for _ in range(READERS)]
    try:
        for child in readers:
            child.start()
        for child in readers:
            assert child.said() == "ready"
        begun, ticks, used = time.monotonic(), busy_ticks(), precise_cpu_seconds(broker)
        run = uvloop.run(_lone_messages(cluster, 1 << 30, readers))
        took = time.monotonic() - begun
        cores = (busy_ticks() - ticks) / TICKS_PER_SECOND / took
        share = (precise_cpu_seconds(broker) - used) / took
    finally:
        for child in readers:
            child.stop()
    name = f"beside {READERS} readers, {f'{pace:.0f} MB/s each' if pace else 'full speed'}"
    more = {"backlog_mb_per_s": run.bytes / run.seconds / 1e6, "busy_cores": cores, "broker_cores": share}
    _add(bench, name, run, alone, more)


def _add(bench: Bench, name: str, run: LoneRun, alone: LoneRun, more: dict[str, float]) -> None:
    latencies, unhindered = run.latencies, run.unhindered
    name, p50, p99 = f"lone message {name}", alone.latencies.percentile(0.5), alone.latencies.percentile(0.99)
    bench.add(
        SECTION, f"{name}, p50", latencies.percentile(0.5), "ms", Limit(p50, "alone, p50"), messages=latencies.count
    )
    bench.add(
        SECTION, f"{name}, p99", latencies.percentile(0.99), "ms", Limit(p99, "alone, p99"), aim=at_most(LONE_MS_MAX),
        max_ms=latencies.longest_ms, **more,
    )  # fmt: skip
    bench.add(
        SECTION, f"{name}, p99 without waits for a core", unhindered.percentile(0.99), "ms",
        Limit(alone.unhindered.percentile(0.99), "alone, the same"),
        aim=at_most(LONE_MS_MAX), p50_ms=unhindered.percentile(0.5), p90_ms=unhindered.percentile(0.9),
    )  # fmt: skip


def _broker_of(cluster: PrivateCluster) -> int:
    return int(cluster.live.pid(f"{discovery.BROKER_PREFIX}1"))


def _waited_ms(*pids: int) -> float:
    """Return how long the first threads of these processes were ready to run and had no core, since their starts."""
    return sum(int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e6


async def _lone_messages(cluster: PrivateCluster, messages: int, readers: list[Child]) -> LoneRun:
    """Publish and receive one message after the other, until there were enough or a reader has ended.

    Returns:
        the latencies of the messages; ``bytes`` and ``seconds`` are those of all readers.
    """
    client = await heliograph.connect_async(cluster.service_url)
    ended = [asyncio.create_task(asyncio.to_thread(child.said)) for child in readers]
    try:
        run = await _ping_itself(client, _broker_of(cluster), messages, ended)
        read = [json.loads(line) for line in await asyncio.gather(*ended)]
    finally:
        await client.close()
    run.bytes = sum(found["bytes"] for found in read)
    run.seconds = max((found["seconds"] for found in read), default=0.0)
    return run


async def _ping_itself(client: AsyncClient, broker: int, messages: int, ended: list[asyncio.Task[str]]) -> LoneRun:
    run = LoneRun()
    consumer = await client.consumer(LONE_TOPIC, "lone")
    producer = await client.producer(LONE_TOPIC, batch_messages=1, linger_ms=0)
    payload = os.urandom(SIZE)
    while run.messages < messages and not any(task.done() for task in ended):
        waited, begun = _waited_ms(os.getpid(), broker), time.perf_counter()
        _, message = await asyncio.gather(producer.send(payload), consumer.receive())
        took = time.perf_counter() - begun
        waited = _waited_ms(os.getpid(), broker) - waited
        run.latencies.add(took * 1000)
        run.unhindered.add(max(0.0, took * 1000 - waited))
        run.messages += 1
        await consumer.ack(message)
        await asyncio.sleep(max(0.0, 1 / LONE_RATE - took))
    await producer.close()
    await consumer.close()
    return run


def _forget_pages(directory: Path) -> None:
    """Have the kernel drop the pages of all files below a directory from its cache, as far as it can."""
    for path in directory.rglob("*"):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:  # deleted meanwhile, or a socket
            continue
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:  # a directory
            pass
        finally:
            os.close(descriptor)
