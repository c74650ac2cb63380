"""Publishes to a real cluster, with our client and with the stock one: latency, end to end, and in batches."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

import heliograph
from heliograph.cli.messages.load import MessageLoad, Sender
from heliograph.cli.messages.measure import Latencies, MeasuredRun, read_payload
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.producer.producer import AsyncProducer
from tests.bench.bench import Bench
from tests.bench.broker import stock
from tests.bench.broker.private_cluster import PrivateCluster, Usage
from tests.bench.figure import Aim, Limit, at_least, ratio_at_most

SECTION = "publish"
SIZE = 1 << 10
BATCH_BYTES = 128 << 10
RATE = 1_000  # messages per second of the end-to-end measurement
LIST_MESSAGES = 1_008  # of one send_many: 8 batches
LISTS_AT_ONCE = 4
RECEIVE_SECONDS_MAX = 5.0
COPIES = 3

Run = TypeVar("Run")
OURS, STOCK = "our client", "stock client"


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    bench.measure_limits()
    cluster = bench.cluster()
    bench.say("measuring publishing with our client")
    uvloop.run(_measure_ours(bench, cluster))
    bench.say("measuring publishing with the stock client")
    _measure_stock(bench, cluster)


async def _measure_ours(bench: Bench, cluster: PrivateCluster) -> None:
    client = await heliograph.connect_async(cluster.service_url)
    try:
        await _send(client, "latency", bench.count(500), window=1)  # warm
        alone, used = await _counted(cluster, _send(client, "latency", bench.count(4_000), window=1))
        _add_alone(bench, f"one in flight, {OURS}", alone.latencies, used)
        arrivals, used = await _counted(cluster, _end_to_end(bench, client))
        _add_end_to_end(bench, f"end to end at {RATE}/s, {OURS}", arrivals.latencies, used)
        _add_acks(bench, arrivals)
        producer = await client.producer("batches", batch_bytes=BATCH_BYTES)
        seconds = bench.seconds(5.0)
        await send_lists(producer, seconds / 5)  # warm
        lists, used = await _counted(cluster, send_lists(producer, seconds))
        peer_rate = bench.peer.small_rate
        _add_batched(bench, f"batches of 128 KiB, lists of messages, {OURS}", lists, used, peer_rate)
        await producer.close()
    finally:
        await client.close()


def _measure_stock(bench: Bench, cluster: PrivateCluster) -> None:
    with stock.connected(cluster.service_url) as client:
        stock.one_by_one(client, "stock-latency", SIZE, bench.seconds(0.5))  # warm
        before = cluster.usage()
        alone = stock.one_by_one(client, "stock-latency", SIZE, bench.seconds(3.0))
        used = cluster.usage().since(before)
        _add_alone(bench, f"one in flight, {STOCK}", alone.latencies, used)
        before = cluster.usage()
        latencies = stock.end_to_end(client, "stock-end-to-end", SIZE, RATE, bench.count(3_000))
        used = cluster.usage().since(before)
        _add_end_to_end(bench, f"end to end at {RATE}/s, {STOCK}", latencies, used)
        stock.batched(client, "stock-batches", SIZE, BATCH_BYTES, bench.seconds(1.0))  # warm
        before = cluster.usage()
        run = stock.batched(client, "stock-batches", SIZE, BATCH_BYTES, bench.seconds(5.0))
        used = cluster.usage().since(before)
        ours = [f for f in bench.figures if f.section == SECTION and f.unit == "msgs/s"]
        against = Limit(ours[0].value, "our client") if ours else bench.peer.small_rate
        _add_batched(bench, f"batches of 128 KiB, {STOCK}", run, used, against)


def _add_alone(bench: Bench, name: str, latencies: Latencies, used: Usage) -> None:
    """Add the rows of messages that travel alone, beside a relay that does the least for them."""
    relay, peer = bench.relay, bench.peer
    _add_percentiles(bench, name, latencies, (relay.p50, ratio_at_most(2.0)), (peer.add_p99, ratio_at_most(3.6)))
    _add_cpu(bench, name, latencies.count, used, relay.cpu, ratio_at_most(2.2))


def _add_end_to_end(bench: Bench, name: str, latencies: Latencies, used: Usage) -> None:
    peer = bench.peer
    _add_percentiles(bench, name, latencies, (peer.add_p50, ratio_at_most(5.0)), (peer.add_p99, ratio_at_most(6.0)))
    _add_cpu(bench, name, latencies.count, used, peer.add_cpu)


def _add_percentiles(
    bench: Bench, name: str, latencies: Latencies, p50: tuple[Limit, Aim], p99: tuple[Limit, Aim]
) -> None:
    """Add both percentiles, each with its limit and the aim of its ratio to that."""
    more = {"messages": latencies.count}
    bench.add(SECTION, f"{name}, p50", latencies.percentile(0.5), "ms", p50[0], aim=p50[1], **more)
    longest = latencies.longest_ms
    bench.add(SECTION, f"{name}, p99", latencies.percentile(0.99), "ms", p99[0], aim=p99[1], max_ms=longest)


def _add_cpu(bench: Bench, name: str, messages: int, used: Usage, against: Limit, aim: Aim | None = None) -> None:
    """Add the servers' processor time for a message of the load that the rows above have."""
    bench.add(
        SECTION,
        f"  servers' CPU for a message, {name}",
        used.cpu.total / messages * 1e6,
        "us",
        against,
        aim=aim,
        user_us=used.cpu.user / messages * 1e6,
        kernel_us=used.cpu.kernel / messages * 1e6,
    )


def _add_batched(bench: Bench, name: str, run: MeasuredRun, used: Usage, against: Limit) -> None:
    per_second = run.messages / run.seconds
    bench.add(SECTION, name, per_second, "msgs/s", against, mb_per_s=run.bytes / run.seconds / 1e6)
    journal = used.journal_bytes / run.seconds / 1e6
    shared = bench.disk.shared
    bench.add(
        SECTION,
        f"  journals meanwhile, 3 copies, {name}",
        journal,
        "MB/s",
        shared,
        aim=at_least(round(shared.value / 2)),
    )
    millions = run.messages / 1e6
    caching = bench.disk.cache_cpu_per_byte * COPIES * run.bytes / millions
    bench.add(
        SECTION,
        f"  servers' CPU for a million messages, {name}",
        used.cpu.total / millions,
        "s",
        Limit(caching, "the kernel's for caching 3 copies once"),
        aim=ratio_at_most(4.0),
        user_s=used.cpu.user / millions,
        kernel_s=used.cpu.kernel / millions,
        share_of_all_cores=used.cpu.total / run.seconds / (os.cpu_count() or 1),
    )


def _add_acks(bench: Bench, arrivals: Arrivals) -> None:
    p50, p99, calls = arrivals.acks.percentile(0.5), arrivals.acks.percentile(0.99), arrivals.acks.count
    name = f"durable acknowledgement meanwhile, {OURS}, p50"
    bench.add(
        SECTION, name, p50, "ms", bench.peer.add_p50, p99_ms=p99, messages_per_call=arrivals.latencies.count / calls
    )


async def _counted(cluster: PrivateCluster, load: Coroutine[Any, Any, Run]) -> tuple[Run, Usage]:
    before = await asyncio.to_thread(cluster.usage)
    run = await load
    return run, (await asyncio.to_thread(cluster.usage)).since(before)


async def _send(client: AsyncClient, topic: str, messages: int, *, window: int, rate: float = 0) -> MeasuredRun:
    """Send single messages, not batched; fail when one of them fails."""
    producer = await client.producer(topic, batch_messages=1, linger_ms=0)
    try:
        run = await Sender(producer, MessageLoad(messages, SIZE, window, rate, 1, 0)).run()
    finally:
        await producer.close()
    assert not run.errors, run.last_error
    return run


async def _end_to_end(bench: Bench, client: AsyncClient) -> Arrivals:
    """Measure from before the send to after the receive, in one process and so with one clock."""
    messages = bench.count(4_000)
    consumer = await client.consumer("end-to-end", "bench")
    arrivals = Arrivals(consumer)
    receiving = asyncio.create_task(arrivals.receive(messages))
    await _send(client, "end-to-end", messages, window=RATE, rate=RATE)
    await receiving
    await consumer.close()
    return arrivals


class Arrivals:
    """A receiver that acknowledges concurrently: one call at a time, for all messages since the last call."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self.latencies = Latencies()
        self.acks = Latencies()
        self._consumer = consumer
        self._unacknowledged: list[Message] = []
        self._acking: asyncio.Task[None] | None = None

    async def receive(self, messages: int) -> None:
        """Receive a number of messages, and wait until all are acknowledged."""
        while self.latencies.count < messages:
            received = await self._consumer.receive_many(1_000, RECEIVE_SECONDS_MAX)
            now_ns = time.time_ns()
            assert received, f"{messages - self.latencies.count} messages did not arrive"
            for message in received:
                made = read_payload(message.value)
                assert made is not None, "sent by this run"
                self.latencies.add((now_ns - made.sent_ns) / 1e6)
            self._unacknowledged += received
            if self._acking is None or self._acking.done():
                self._acking = asyncio.create_task(self._acknowledge())
        assert self._acking is not None, "something was received"
        await self._acking

    async def _acknowledge(self) -> None:
        while self._unacknowledged:
            messages, self._unacknowledged = self._unacknowledged, []
            begun = time.perf_counter()
            await self._consumer.ack_many(messages)
            self.acks.add((time.perf_counter() - begun) * 1000)


async def send_lists(producer: AsyncProducer, seconds: float) -> MeasuredRun:
    """Send lists of messages, a few of them in flight."""
    values = [os.urandom(SIZE) for _ in range(LIST_MESSAGES)]
    run = MeasuredRun()
    begun = time.perf_counter()

    async def send() -> None:
        while time.perf_counter() - begun < seconds:
            sent = time.perf_counter()
            await producer.send_many(values)
            run.latencies.add((time.perf_counter() - sent) * 1000)
            run.messages += LIST_MESSAGES
            run.bytes += LIST_MESSAGES * SIZE

    await asyncio.gather(*(send() for _ in range(LISTS_AT_ONCE)))
    run.seconds = time.perf_counter() - begun
    return run
