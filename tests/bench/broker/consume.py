"""Reads from a real cluster: at the tail while messages are published, and through a backlog."""

from __future__ import annotations

import json
import os
import time

import uvloop

import heliograph
from heliograph.cli.messages.measure import MeasuredRun
from tests.bench.bench import Bench
from tests.bench.broker.private_cluster import PrivateCluster
from tests.bench.broker.publish import LIST_MESSAGES, SIZE, send_lists
from tests.bench.figure import Limit, at_least
from tests.bench.process import Child

SECTION = "consume"
BACKLOG_BYTES = 1 << 30  # far more than the broker's cache of 64 MiB
TAIL_TOPIC, BACKLOG_TOPIC = "tail", "backlog"


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    bench.measure_limits()
    cluster = bench.cluster()
    bench.say("measuring consumers")
    _measure_tail(bench, cluster)
    _measure_catch_up(bench, cluster)


def _measure_tail(bench: Bench, cluster: PrivateCluster) -> None:
    """Measure a reader in another process that follows a producer at full speed."""
    seconds = bench.seconds(4.0)
    with reader("ours", cluster, TAIL_TOPIC, "latest", seconds) as child:
        assert child.said() == "ready"
        published = uvloop.run(_publish(cluster, TAIL_TOPIC, seconds + 0.5))
        read = _result(child)
    against = Limit(published.messages / published.seconds, "published meanwhile")
    rate = read.messages / read.seconds
    mb_per_s = read.bytes / read.seconds / 1e6
    bench.add(
        SECTION, "tail read, our client", rate, "msgs/s", against, aim=at_least(0.95 * against.value), mb_per_s=mb_per_s
    )


def _measure_catch_up(bench: Bench, cluster: PrivateCluster) -> None:
    """Measure readers in another process that read a backlog larger than the caches."""
    messages = bench.count(BACKLOG_BYTES // SIZE)
    uvloop.run(fill(cluster, BACKLOG_TOPIC, messages))
    bench.say("measuring catch-up reads")
    seconds = bench.seconds(4.0)
    runs = {}
    for kind in ("ours", "stock"):
        before = cluster.usage()
        with reader(kind, cluster, BACKLOG_TOPIC, "earliest", seconds) as child:
            assert child.said() == "ready"
            run = runs[kind] = _result(child)
        cpu = cluster.usage().since(before).cpu.total
        against = Limit(bench.peer.small_rate.value, "bare log's adds, 1 KiB")
        if kind == "stock":
            against = Limit(runs["ours"].messages / runs["ours"].seconds, "our client")
        bench.add(
            SECTION,
            f"catch-up read, {'our' if kind == 'ours' else 'stock'} client",
            run.messages / run.seconds,
            "msgs/s",
            against,
            mb_per_s=run.bytes / run.seconds / 1e6,
            servers_cpu_s_per_million=cpu / run.messages * 1e6,
        )


def reader(kind: str, cluster: PrivateCluster, topic: str, start: str, seconds: float, mb_per_s: float = 0.0) -> Child:
    """Return a reader of a topic for another process, with our client or the stock one; ours may have a pace."""
    return Child("tests.bench.broker.topic_reader", kind, cluster.service_url, topic, start, seconds, mb_per_s)


def _result(child: Child) -> MeasuredRun:
    found = json.loads(child.said())
    assert found["messages"], "the reader read something"
    return MeasuredRun(messages=found["messages"], bytes=found["bytes"], seconds=found["seconds"])


async def _publish(cluster: PrivateCluster, topic: str, seconds: float) -> MeasuredRun:
    client = await heliograph.connect_async(cluster.service_url)
    try:
        return await send_lists(await client.producer(topic), seconds)
    finally:
        await client.close()


async def fill(cluster: PrivateCluster, topic: str, messages: int) -> MeasuredRun:
    """Publish a backlog."""
    client = await heliograph.connect_async(cluster.service_url)
    try:
        producer = await client.producer(topic)
        values = [os.urandom(SIZE) for _ in range(LIST_MESSAGES)]
        begun = time.perf_counter()
        for _ in range(messages // LIST_MESSAGES + 1):
            await producer.send_many(values)
        return MeasuredRun(messages=messages, seconds=time.perf_counter() - begun)
    finally:
        await client.close()
