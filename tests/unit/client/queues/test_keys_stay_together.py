"""The messages of a key are at one consumer of a Key_Shared subscription, whatever brought them and in which batch."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import aiohttp
import pulsar
import pytest

import heliograph
from heliograph.protocol.batch import TAKES_PARTS

pytestmark = pytest.mark.slow

KEYS = [f"key-{n}" for n in range(10)]
ROUNDS = 12  # messages of each key
SECONDS = 30
POLL_MS = 20  # of a consumer that may own no key with messages left
IDLE_ROUNDS_MAX = 200  # of all consumers, before the rest counts as lost


@pytest.fixture
async def client(cluster: heliograph.LocalCluster) -> AsyncIterator[heliograph.AsyncClient]:
    async with await heliograph.connect_async(cluster.service_url) as made:
        yield made


async def publish(cluster: heliograph.LocalCluster, client: heliograph.AsyncClient, by: str, topic: str) -> None:
    """Publish the rounds, in which each key comes once. The value tells the round."""
    keys = KEYS * ROUNDS
    values = [f"{key}:{n // len(KEYS)}" for n, key in enumerate(keys)]
    if by == "send_many":
        await client.producer(topic, batch_by_key=False).send_many([value.encode() for value in values], keys=keys)
        return
    if by == "stock":
        await asyncio.to_thread(publish_stock, cluster.service_url, topic, keys, values)
        return
    async with aiohttp.ClientSession(cluster.http_url) as session:
        if by == "REST":
            messages = [{"key": key, "payload": value} for key, value in zip(keys, values, strict=True)]
            path = f"/topics/persistent/public/default/{topic}"
            async with session.post(path, json={"valueSchema": "", "messages": messages}) as answer:
                assert answer.status == 200, await answer.text()
            return
        path = f"/ws/v2/producer/persistent/public/default/{topic}?batchingEnabled=true"
        async with session.ws_connect(path) as socket:
            for key, value in zip(keys, values, strict=True):
                await socket.send_json({"key": key, "payload": base64.b64encode(value.encode()).decode()})
            for _ in keys:
                assert json.loads((await socket.receive()).data)["result"] == "ok"


def publish_stock(service_url: str, topic: str, keys: Sequence[str], values: Sequence[str]) -> None:
    with_batches: dict[str, Any] = {"batching_enabled": True, "batching_max_publish_delay_ms": 200}
    theirs = pulsar.Client(service_url)
    try:
        producer = theirs.create_producer(topic, **with_batches)
        for key, value in zip(keys, values, strict=True):
            producer.send_async(value.encode(), None, partition_key=key)
        producer.flush()
    finally:
        theirs.close()


def check(got: Iterable[Sequence[tuple[str, bytes]]]) -> None:
    """Check what consumers got: (key, value) pairs in order."""
    homes: defaultdict[str, set[int]] = defaultdict(set)
    rounds: defaultdict[str, list[int]] = defaultdict(list)
    for number, messages in enumerate(got):
        for key, value in messages:
            homes[key].add(number)
            rounds[key].append(int(value.decode().rpartition(":")[2]))
    assert homes.keys() == set(KEYS)
    assert [key for key, found in homes.items() if len(found) > 1] == [], "no key reaches several consumers"
    assert all(found == list(range(ROUNDS)) for found in rounds.values()), "each message comes once, in order"
    assert len({home for found in homes.values() for home in found}) > 1, "keys are spread"


@pytest.mark.parametrize("by", ["send_many", "REST", "WebSocket", "stock"])
@pytest.mark.parametrize("queue", [1, 1_000])
async def test_keys_stay_together_whatever_producer_batches_them(
    by: str, queue: int, cluster: heliograph.LocalCluster, client: heliograph.AsyncClient
) -> None:
    topic = f"keys-{by}-{queue}"
    consumers = [await client.consumer(topic, "s", type="key_shared", receiver_queue=queue) for _ in range(3)]
    await publish(cluster, client, by, topic)
    got: list[list[tuple[str, bytes]]] = [[] for _ in consumers]
    async with asyncio.timeout(SECONDS):
        while sum(map(len, got)) < len(KEYS) * ROUNDS:
            for place, consumer in enumerate(consumers):
                for message in await consumer.receive_many(100, 0.05):
                    got[place].append((message.key or "", message.data))
                    await consumer.ack(message)
    check(got)


@pytest.mark.parametrize("by", ["send_many", "REST", "WebSocket", "stock"])
async def test_keys_stay_together_at_stock_consumers_that_take_parts(
    by: str, cluster: heliograph.LocalCluster, client: heliograph.AsyncClient
) -> None:
    topic = f"stock-keys-{by}"
    theirs = await asyncio.to_thread(pulsar.Client, cluster.service_url)
    try:
        consumers = [
            await asyncio.to_thread(
                theirs.subscribe,
                topic,
                "s",
                pulsar.ConsumerType.KeyShared,
                batch_index_ack_enabled=True,
                properties={TAKES_PARTS: "true"},
            )
            for _ in range(3)
        ]
        await publish(cluster, client, by, topic)
        got: list[list[tuple[str, bytes]]] = [[] for _ in consumers]
        idle = 0
        while sum(map(len, got)) < len(KEYS) * ROUNDS and idle < IDLE_ROUNDS_MAX:
            idle += 1
            for place, consumer in enumerate(consumers):
                try:
                    message = await asyncio.to_thread(consumer.receive, POLL_MS)
                except pulsar.Timeout:
                    continue
                idle = 0
                got[place].append((message.partition_key(), message.data()))
                await asyncio.to_thread(consumer.acknowledge, message)
    finally:
        await asyncio.to_thread(theirs.close)
    check(got)


async def test_keys_stay_together_while_consumers_come_and_go(
    cluster: heliograph.LocalCluster, client: heliograph.AsyncClient
) -> None:
    """Each key is held by one consumer at a time; a consumer that is lost gives back what it held, and only that."""
    topic = "keys-come-and-go"
    options: dict[str, Any] = {"type": "key_shared", "receiver_queue": 7}
    connected = [await client.consumer(topic, "s", **options)]
    await publish(cluster, client, "send_many", topic)
    handled: defaultdict[str, list[int]] = defaultdict(list)
    done = 0
    async with asyncio.timeout(SECONDS):
        for turn in range(1_000):
            if turn in (2, 4, 6):
                connected.append(await client.consumer(topic, "s", **options))
            if turn in (5, 9):
                await connected.pop(0).close()
            for consumer in connected:
                for message in await consumer.receive_many(3, 0.02):
                    key, value = message.key or "", int(message.data.decode().rpartition(":")[2])
                    assert value == len(handled[key]), "the next one of its key, none twice"
                    handled[key].append(value)
                    done += 1
                    await consumer.ack(message)
            if done == len(KEYS) * ROUNDS:
                break
    assert done == len(KEYS) * ROUNDS
