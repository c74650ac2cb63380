"""The client against real brokers and bookies: publishing, consuming and failover of a broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import heliograph
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.base import errors
from heliograph.metadata.connect import connect_store
from heliograph.metadata.store import MetadataStore
from tests.cluster.support.ledger_cluster import LedgerCluster, ledger_cluster, quick


@dataclass
class BrokerCluster:
    ledgers: LedgerCluster
    brokers: dict[str, Broker] = field(default_factory=dict)
    parts: dict[str, tuple[LedgerClient, MetadataStore]] = field(default_factory=dict)

    async def start_broker(self, broker_id: str, **settings: Any) -> Broker:
        store = await connect_store(self.ledgers._url)
        client = await LedgerClient.start(store, quick())
        broker = Broker(BrokerConfig(broker_id, **settings), store, client)
        await broker.start()
        self.brokers[broker_id] = broker
        self.parts[broker_id] = client, store
        return broker

    async def stop_broker(self, broker_id: str) -> None:
        await self.brokers.pop(broker_id).stop()
        client, store = self.parts.pop(broker_id)
        await client.close()
        await store.close()

    async def connect(self, **options: Any) -> heliograph.AsyncClient:
        address = ",".join(broker.service_url.removeprefix("pulsar://") for broker in self.brokers.values())
        return await heliograph.connect_async(f"pulsar://{address}", **options)


@asynccontextmanager
async def broker_cluster(brokers: int = 1, **settings: Any) -> AsyncIterator[BrokerCluster]:
    async with ledger_cluster(3) as ledgers:
        cluster = BrokerCluster(ledgers)
        try:
            for number in range(1, brokers + 1):
                await cluster.start_broker(f"broker-{number}", **settings)
            yield cluster
        finally:
            for broker_id in list(cluster.brokers):
                await cluster.stop_broker(broker_id)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await scenario

    asyncio.run(bounded())


async def take(consumer: heliograph.AsyncConsumer, count: int) -> list[heliograph.Message]:
    got: list[heliograph.Message] = []
    while len(got) < count:
        batch = await consumer.receive_many(count - len(got), 60)
        assert batch, f"only {len(got)} of {count} messages came"
        got += batch
    return got


async def assert_nothing_comes(consumer: heliograph.AsyncConsumer) -> None:
    assert await consumer.receive_many(1, 0.2) == []


async def test_publish_and_consume_in_order() -> None:
    async with broker_cluster() as cluster, await cluster.connect() as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        async with client.producer("t") as producer:
            ids = [await producer.send(b"first", key="k", properties={"a": "b"}, event_time_ms=3)]
            ids += await producer.send_many([b"%d" % index for index in range(3000)])
            ids += await asyncio.gather(*(producer.send(b"x%d" % index) for index in range(50)))
        assert ids == sorted(set(ids))
        messages = await take(consumer, 3051)
        assert [message.message_id for message in messages] == ids
        assert (messages[0].key, messages[0].properties, messages[0].event_time_ms) == ("k", {"a": "b"}, 3)
        await consumer.ack_many(messages)
        await consumer.close()
        again = await client.consumer("t", "s")
        await assert_nothing_comes(again)


async def test_confirmed_acknowledgements_of_parts_of_batches_stick() -> None:  # I11
    async with broker_cluster() as cluster, await cluster.connect() as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        async with client.producer("t") as producer:
            await producer.send_many([b"%d" % index for index in range(200)])
        messages = await take(consumer, 200)
        await consumer.ack_many(message for message in messages if int(message.value) % 3)
        await cluster.stop_broker("broker-1")
        broker = await cluster.start_broker("broker-2")
        async with await heliograph.connect_async(broker.service_url) as other:
            survivor = await other.consumer("t", "s")
            left = await take(survivor, 67)
            assert [int(message.value) for message in left] == list(range(0, 200, 3))
            await survivor.ack_cumulative(left[-1])
            await assert_nothing_comes(survivor)


async def test_publishing_and_consuming_continue_when_the_owner_changes() -> None:
    async with broker_cluster(brokers=2) as cluster, await cluster.connect() as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        producer = await client.producer("t")
        await producer.send(b"0")
        owners = [name for name, broker in cluster.brokers.items() if broker.statistics()["topics"]]
        sending = asyncio.ensure_future(_publish(producer, 1, 200))
        await take(consumer, 20)
        await cluster.stop_broker(owners[0] if owners else "broker-1")
        await sending
        seen = {int(message.value) for message in await _until_last(consumer, 199)}
        assert seen >= set(range(20, 200)), sorted(set(range(200)) - seen)
        reader = await client.reader("t", "earliest")
        values: list[int] = []
        while await reader.has_message_available():
            values += [int(message.value) for message in await reader.receive_many(1000, 60)]
        assert list(dict.fromkeys(values)) == list(range(200))  # first copies in publish order, none missing


async def _publish(producer: heliograph.AsyncProducer, first: int, end: int) -> None:
    for index in range(first, end):
        await producer.send(b"%d" % index)


async def _until_last(consumer: heliograph.AsyncConsumer, last: int) -> list[heliograph.Message]:
    got: list[heliograph.Message] = []
    while not got or int(got[-1].value) != last:
        got.append(await consumer.receive(60))
    return got


async def test_shared_consumers_divide_and_inherit_messages() -> None:
    async with broker_cluster() as cluster, await cluster.connect() as client:
        options: dict[str, Any] = {"type": "shared", "initial_position": "earliest", "receiver_queue": 10}
        first = await client.consumer("t", "s", nack_delay_ms=1, **options)
        second = await client.consumer("t", "s", **options)
        async with client.producer("t") as producer:
            for index in range(20):
                await producer.send(b"%d" % index)
        left, right = await take(first, 5), await take(second, 5)
        assert not {message.value for message in left} & {message.value for message in right}
        await first.ack_many(left[1:])
        await second.ack_many(right)
        await first.nack(left[0])
        await second.close()
        rest = await take(first, 11)
        assert sorted(int(message.value) for message in [*left[1:], *right, *rest]) == list(range(20))
        again = next(message for message in rest if message.value == left[0].value)
        assert again.redelivery_count == 1


async def test_exclusive_consumers_and_unsubscribing() -> None:
    async with broker_cluster() as cluster, await cluster.connect() as client, await cluster.connect() as other:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        with pytest.raises(errors.ConsumerBusyError):
            await other.consumer("t", "s")
        await consumer.unsubscribe()
        async with client.producer("t") as producer:
            await producer.send(b"x")
        assert (await take(await other.consumer("t", "s", initial_position="earliest"), 1))[0].value == b"x"


async def test_seeking_and_reading_by_message_id_and_time() -> None:
    async with broker_cluster() as cluster, await cluster.connect() as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        async with client.producer("t") as producer:
            ids = await producer.send_many([b"0", b"1", b"2"])
            await asyncio.sleep(0.005)
            ids += [await producer.send(b"3"), await producer.send(b"4")]
        messages = await take(consumer, 5)
        for place, inclusive, expected in (
            (ids[1], False, [b"2", b"3", b"4"]),
            (ids[1], True, [b"1", b"2", b"3", b"4"]),
            (ids[3], False, [b"4"]),
            (ids[3], True, [b"3", b"4"]),
            ("earliest", False, [b"0", b"1", b"2", b"3", b"4"]),
            (messages[3].publish_time_ms, False, [b"3", b"4"]),
        ):
            await consumer.seek(place, inclusive=inclusive)
            assert [message.value for message in await take(consumer, len(expected))] == expected, place
            if isinstance(place, heliograph.MessageId):
                async with client.reader("t", place, inclusive=inclusive) as reader:
                    assert await reader.has_message_available()
                    assert [message.value for message in await take(reader, len(expected))] == expected
                    assert not await reader.has_message_available()
        await consumer.seek("latest")
        await assert_nothing_comes(consumer)


async def test_partitioned_topics() -> None:
    async with broker_cluster(brokers=2) as cluster, await cluster.connect() as client:
        await cluster.brokers["broker-1"].admin.create_topic("t", partitions=3)
        assert await client.partitions("t") == 3
        consumer = await client.consumer("t", "s", initial_position="earliest")
        keys = [f"N{index % 11}" for index in range(300)]
        async with client.producer("t") as producer:
            ids = await producer.send_many([b"%d" % index for index in range(300)], keys=keys)
        messages = await take(consumer, 300)
        assert {message.message_id: message.value for message in messages} == {
            place: b"%d" % index for index, place in enumerate(ids)
        }
        for key in set(keys):
            own = [int(message.value) for message in messages if message.key == key]
            assert own == sorted(own)
        await consumer.ack_many([message.message_id for message in messages])
        await consumer.close()
        await assert_nothing_comes(await client.consumer("t", "s"))


async def test_the_client_applies_the_size_limit_of_the_broker() -> None:
    async with (
        broker_cluster(max_message_bytes=10_000) as cluster,
        await cluster.connect() as client,
        client.producer("t") as producer,
    ):
        with pytest.raises(errors.MessageTooLargeError) as caught:
            await producer.send(bytes((64 << 20) + 1))
        assert caught.value.limit == f"{64 << 20} bytes"
        await producer.send(bytes(10_000), properties={"p": "v" * 7000})
        await producer.send_many([bytes(5_000)] * 10)
        reader = client.reader("t", start="earliest")
        assert len(await reader.receive_many(20, timeout=30)) >= 1
        large = random.Random(1).randbytes(95_000)
        last = await producer.send(large, key="k", properties={"p": "v" * 7000})
        while (message := await reader.receive(timeout=30)).message_id != last:
            pass
        assert (message.data, message.key) == (large, "k")
        await reader.close()
