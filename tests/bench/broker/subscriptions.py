"""Several consumers of one topic: fan-out, a shared subscription, keys, acknowledgements out of order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Sequence
from typing import Literal, TypedDict

import uvloop

import heliograph
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.producer.producer import AsyncProducer
from tests.bench.bench import Bench
from tests.bench.broker import stock
from tests.bench.broker.consume import BACKLOG_BYTES, BACKLOG_TOPIC, fill, reader
from tests.bench.broker.private_cluster import PrivateCluster
from tests.bench.broker.publish import LISTS_AT_ONCE
from tests.bench.figure import Limit, at_most, ratio_at_least
from tests.bench.process import TICKS_PER_SECOND, Child, busy_ticks

SECTION = "subscriptions"
SIZE = 1 << 10
MESSAGES = 60_000  # of each measurement
ACKED_MESSAGES = 20_000  # entries of one message each
KEYS = 100_000
LIST_MESSAGES = 1_000
RECEIVE_SECONDS_MAX = 10.0
FAN_OUTS = (1, 5, 20)
SHARERS = (1, 8, 64, 1_000)
KEY_SHARERS = (4, 200, 5_000)
WORKERS, SMALL_QUEUE = 64, 4  # consumers that take few messages of a batch each
DIVIDED_MESSAGES = 10_000
CATCHING_UP = 3
SECONDS = 4.0

Kind = Literal["exclusive", "shared", "key_shared"]


class MessageCosts(TypedDict):
    """Processor time of a message, and how many cores were busy meanwhile."""

    client_us_per_message: float
    server_us_per_message: float
    busy_cores: float


class Costs:
    """What a measurement, which begins here, takes of the processor: this process, where the client is, all servers,
    and the whole machine."""

    def __init__(self, cluster: PrivateCluster) -> None:
        self._cluster = cluster
        self._servers = cluster.cpu_seconds()
        self._busy = busy_ticks()
        self._client = time.process_time()
        self._begun = time.perf_counter()

    def of(self, messages: int) -> MessageCosts:
        """Return the costs of each of so many messages."""
        seconds, client = time.perf_counter() - self._begun, time.process_time() - self._client
        return {
            "client_us_per_message": client / messages * 1e6,
            "server_us_per_message": (self._cluster.cpu_seconds() - self._servers) / messages * 1e6,
            "busy_cores": (busy_ticks() - self._busy) / TICKS_PER_SECOND / seconds,
        }


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    bench.measure_limits()
    cluster = bench.cluster()
    bench.say("measuring subscriptions")
    uvloop.run(_measure(bench, cluster))
    bench.say("measuring a publisher beside consumers that catch up")
    _measure_beside(bench, cluster)


async def _measure(bench: Bench, cluster: PrivateCluster) -> None:
    client = await heliograph.connect_async(cluster.service_url)
    try:
        await _measure_fan_out(bench, cluster, client)
        await _measure_sharing(bench, cluster, client)
        await _measure_keys(bench, cluster, client)
        await _measure_acks(bench, cluster, client, batch=1)
        await _measure_acks(bench, cluster, client, batch=LIST_MESSAGES)
    finally:
        await client.close()


async def _measure_fan_out(bench: Bench, cluster: PrivateCluster, client: AsyncClient) -> None:
    """Deliver every message to every subscription; the rate is that of all deliveries."""
    alone: float | None = None
    for count in FAN_OUTS:
        topic, messages = f"fan-out-{count}", bench.count(MESSAGES) // count
        consumers = [await client.consumer(topic, f"s{n}", receiver_queue=5_000) for n in range(count)]
        seconds, costs = await _delivered(cluster, client, topic, consumers, messages, each_gets_all=True)
        rate = messages * count / seconds
        against = Limit(alone or rate, "one subscription")
        alone = alone or rate
        mb_per_s = rate * SIZE / 1e6
        bench.add(SECTION, f"fan-out to {count}, deliveries", rate, "msgs/s", against, mb_per_s=mb_per_s, **costs)


async def _measure_sharing(bench: Bench, cluster: PrivateCluster, client: AsyncClient) -> None:
    alone: float | None = None
    for count in SHARERS:
        topic, messages = f"shared-{count}", bench.count(MESSAGES)
        consumers = [
            await client.consumer(topic, "s", type="shared", receiver_queue=max(5_000 // count, 1_000))
            for _ in range(count)
        ]
        seconds, costs = await _delivered(cluster, client, topic, consumers, messages, each_gets_all=False)
        rate = messages / seconds
        against = Limit(alone or rate, "one consumer")
        bench.add(SECTION, f"shared by {count:,}", rate, "msgs/s", against, **costs)
        if alone is None:
            await _measure_bytes(bench, client, topic, messages)
        alone = alone or rate
    messages = bench.count(DIVIDED_MESSAGES)
    workers = [await client.consumer("jobs", "s", type="shared", receiver_queue=SMALL_QUEUE) for _ in range(WORKERS)]
    seconds, costs = await _delivered(cluster, client, "jobs", workers, messages, each_gets_all=False)
    name, against = (
        f"shared by {WORKERS} with queues of {SMALL_QUEUE}, batches divided",
        Limit(alone or rate, "one consumer"),
    )
    bench.add(SECTION, name, messages / seconds, "msgs/s", against, **costs)


async def _measure_bytes(bench: Bench, client: AsyncClient, topic: str, messages: int) -> None:
    """Compare what one consumer was sent of batches with what is stored of them."""
    stats = await client.admin.topic_stats(topic)
    sent, stored = stats["subscriptions"]["s"]["bytesOutCounter"], stats["bytesInCounter"]
    against, name = Limit(stored / messages, "whole entries"), "batches to one consumer, on the wire"
    bench.add(SECTION, name, sent / messages, "B/msg", against, aim=at_most(1.3 * stored / messages))


async def _measure_keys(bench: Bench, cluster: PrivateCluster, client: AsyncClient) -> None:
    """Deliver ordinary batches, in which hardly a key comes twice. Joining is measured with the consumers connected."""
    messages = bench.count(MESSAGES)
    keys = [f"key-{n % KEYS}" for n in range(messages)]
    random.Random(1).shuffle(keys)
    for count in KEY_SHARERS:
        topic, queue = f"keys-{count}", max(8_000 // count, 10)
        begun, costs = time.perf_counter(), Costs(cluster)
        consumers = [await client.consumer(topic, "s", type="key_shared", receiver_queue=queue) for _ in range(count)]
        joining_ms, joined = (time.perf_counter() - begun) / count * 1_000, costs.of(count)
        seconds, used = await _delivered(cluster, client, topic, consumers, messages, each_gets_all=False, keys=keys)
        name, peer = f"Key_Shared by {count:,}, {KEYS:,} keys", bench.peer.small_rate
        server_ms = joined["server_us_per_message"] / 1_000
        bench.add(
            SECTION,
            name,
            messages / seconds,
            "msgs/s",
            peer,
            joining_ms=joining_ms,
            joining_server_ms=server_ms,
            **used,
        )


async def _measure_acks(bench: Bench, cluster: PrivateCluster, client: AsyncClient, *, batch: int) -> None:
    """Acknowledge one by one in random order, so that holes open and close; durable when the call returns."""
    messages = bench.count(ACKED_MESSAGES)
    topic = f"acks-{batch}"
    consumer = await client.consumer(topic, "s", type="shared", receiver_queue=messages)
    async with client.producer(topic, batch_messages=batch, batch_bytes=4 << 20, linger_ms=0) as producer:
        payload = os.urandom(SIZE)
        for _ in range(0, messages, LIST_MESSAGES):
            await producer.send_many([payload] * min(LIST_MESSAGES, messages))
    messages = -(-messages // LIST_MESSAGES) * min(LIST_MESSAGES, messages)
    received = await _take(consumer, messages)
    random.Random(2).shuffle(received)
    first_list = min(LIST_MESSAGES, messages // 2)  # it makes the cursor's ledger, so it is measured by itself
    begun = time.perf_counter()
    await consumer.ack_many(received[:first_list])
    first_ms = (time.perf_counter() - begun) * 1000
    costs, begun = Costs(cluster), time.perf_counter()
    for first in range(first_list, messages, LIST_MESSAGES):
        await consumer.ack_many(received[first : first + LIST_MESSAGES])
    seconds, used = time.perf_counter() - begun, costs.of(messages - first_list)
    await consumer.close()
    bench.add(
        SECTION,
        "individual acknowledgements, random order" + (f", of batches of {batch:,}" if batch > 1 else ""),
        (messages - first_list) / seconds,
        "acks/s",
        bench.peer.small_rate,
        holes=messages // 2,
        first_list_ms=first_ms,
        **used,
    )


def _measure_ceiling(bench: Bench) -> Limit:
    """Return what the stock client does without batches where each entry is answered at once and none is stored."""
    with Child("tests.bench.peers.receipts_host") as server, stock.connected(server.said()) as client:
        stock.unbatched(client, "single", SIZE, bench.seconds(SECONDS / 4))  # warm
        before = time.process_time()
        run = stock.unbatched(client, "single", SIZE, bench.seconds(SECONDS))
    rate, name = run.messages / run.seconds, "the stock client without batches, answered at once"
    client_us = (time.process_time() - before) / run.messages * 1e6
    bench.add(SECTION, name, rate, "msgs/s", bench.peer.small_rate, client_us_per_message=client_us)
    return Limit(rate, name)


def _measure_beside(bench: Bench, cluster: PrivateCluster) -> None:
    """Publish with the stock client, one message in flight, alone and while three readers read an uncached backlog."""
    ceiling = _measure_ceiling(bench)
    with stock.connected(cluster.service_url) as client:
        costs = Costs(cluster)
        singles = stock.unbatched(client, "single", SIZE, bench.seconds(SECONDS))
        used, rate = costs.of(singles.messages), singles.messages / singles.seconds
        name = "no batches, many in flight, stock client"
        bench.add(SECTION, name, rate, "msgs/s", ceiling, aim=ratio_at_least(0.5), **used)
        alone = stock.one_by_one(client, "beside", SIZE, bench.seconds(SECONDS)).latencies.percentile(0.99)
        uvloop.run(fill(cluster, BACKLOG_TOPIC, bench.count(BACKLOG_BYTES // SIZE)))
        with contextlib.ExitStack() as stack:
            seconds = bench.seconds(SECONDS)
            kinds = [reader("ours", cluster, BACKLOG_TOPIC, "earliest", seconds + 2) for _ in range(CATCHING_UP)]
            for catching_up in [stack.enter_context(kind) for kind in kinds]:
                assert catching_up.said() == "ready"
            beside = stock.one_by_one(client, "beside", SIZE, seconds).latencies
    name = f"one in flight beside {CATCHING_UP} consumers that catch up, p99"
    bench.add(
        SECTION, name, beside.percentile(0.99), "ms", Limit(alone, "alone"), aim=at_most(10 * alone),
        p50_ms=beside.percentile(0.5),
    )  # fmt: skip


async def _delivered(
    cluster: PrivateCluster,
    client: AsyncClient,
    topic: str,
    consumers: Sequence[AsyncConsumer],
    messages: int,
    *,
    each_gets_all: bool,
    keys: Sequence[str] | None = None,
) -> tuple[float, MessageCosts]:
    """Return the seconds from the first publish to the last delivery, and the costs of each delivery; every message is
    acknowledged."""
    deliveries = left = messages * len(consumers) if each_gets_all else messages
    done = asyncio.Event()

    async def consume(consumer: AsyncConsumer) -> None:
        nonlocal left
        while not done.is_set():
            received = await consumer.receive_many(5_000, RECEIVE_SECONDS_MAX)
            if received:
                left -= len(received)
                await consumer.ack_many(received)
            if left <= 0:
                done.set()

    consuming = [asyncio.create_task(consume(consumer)) for consumer in consumers]
    values = [os.urandom(SIZE) for _ in range(LIST_MESSAGES)]
    costs, begun = Costs(cluster), time.perf_counter()
    firsts = iter(range(0, messages, LIST_MESSAGES))

    async def send_some(producer: AsyncProducer) -> None:
        for first in firsts:
            count = min(LIST_MESSAGES, messages - first)
            chosen = None if keys is None else keys[first : first + count]
            await producer.send_many(values[:count], keys=chosen)

    async with client.producer(topic) as producer:
        await asyncio.gather(*(send_some(producer) for _ in range(LISTS_AT_ONCE)))
    await done.wait()
    seconds, used = time.perf_counter() - begun, costs.of(deliveries)
    for task in consuming:
        task.cancel()
    await asyncio.gather(*consuming, return_exceptions=True)
    for consumer in consumers:
        await consumer.close()
    return seconds, used


async def _take(consumer: AsyncConsumer, messages: int) -> list[Message]:
    taken: list[Message] = []
    while len(taken) < messages:
        received = await consumer.receive_many(5_000, RECEIVE_SECONDS_MAX)
        assert received, f"{messages - len(taken)} messages did not arrive"
        taken += received
    return taken
