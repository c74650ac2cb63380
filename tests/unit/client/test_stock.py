"""The stock Pulsar client and this client on one broker: each reads what the other wrote."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, get_args

import pulsar
import pytest

from heliograph.client.types import Compression
from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.world import TOPIC, client_of, stored


def stock_client(broker: FakeBroker) -> Any:
    return pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


async def with_stock(broker: FakeBroker, use: Callable[[Any], Any]) -> Any:
    def on_thread() -> Any:
        client = stock_client(broker)
        try:
            return use(client)
        finally:
            client.close()

    return await asyncio.to_thread(on_thread)


def codecs_of(broker: FakeBroker) -> set[int]:
    return {entries.metadata_of(section).compression for section in broker.store.topics[TOPIC].entries}


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("codec", list(pulsar.CompressionType.__members__))
async def test_we_read_what_the_stock_client_wrote(batching: bool, codec: str) -> None:
    def produce(client: Any) -> None:
        producer = client.create_producer(
            "t", batching_enabled=batching, compression_type=getattr(pulsar.CompressionType, codec)
        )
        for index in range(20):
            producer.send_async(
                b"%d" % index * 100, None, partition_key=f"k{index}", properties={"p": "v"}, event_timestamp=index + 1
            )
        producer.flush()
        producer.close()

    async with FakeBroker() as broker, await client_of(broker) as client:
        await with_stock(broker, produce)
        consumer = await client.consumer("t", "s", initial_position="earliest")
        messages = [await consumer.receive(60) for _ in range(20)]
        assert [message.value for message in messages] == [b"%d" % index * 100 for index in range(20)]
        assert codecs_of(broker) == {pb.CompressionType.Value(codec.upper())}
        assert [message.key for message in messages] == [f"k{index}" for index in range(20)]
        assert [message.event_time_ms for message in messages] == list(range(1, 21))
        assert all(message.properties == {"p": "v"} for message in messages)
        await consumer.ack_many(messages)


@pytest.mark.parametrize("compression", get_args(Compression))
async def test_the_stock_client_reads_what_we_wrote(compression: str) -> None:
    def consume(client: Any) -> list[Any]:
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        messages = [consumer.receive(5000) for _ in range(23)]
        for message in messages:
            consumer.acknowledge(message)
        found = [
            (each.data(), each.partition_key(), each.properties(), each.event_timestamp(), each.message_id())
            for each in messages
        ]
        consumer.close()
        return found

    async with FakeBroker() as broker, await client_of(broker) as client:
        async with client.producer("t", compression=compression) as producer:
            ids = [await producer.send(b"one" * 100, key="k", properties={"a": "b"}, event_time_ms=9)]
            ids += await producer.send_many([b"%d" % index * 100 for index in range(20)])
            ids += await producer.send_many([b"x", b"y"], keys=["kx", "ky"], properties=[{"n": "1"}, {"n": "2"}])
        found = await with_stock(broker, consume)
        assert found[0][:4] == (b"one" * 100, "k", {"a": "b"}, 9)
        assert [each[0] for each in found[1:21]] == [b"%d" % index * 100 for index in range(20)]
        assert [each[:3] for each in found[21:]] == [(b"x", "kx", {"n": "1"}), (b"y", "ky", {"n": "2"})]
        for ours, stock in zip(ids, (each[4] for each in found), strict=True):
            assert (ours.ledger_id, ours.entry_id, ours.batch_index) == (
                stock.ledger_id(),
                stock.entry_id(),
                stock.batch_index(),
            )
        assert codecs_of(broker) >= {pb.CompressionType.Value(compression.upper())}


@pytest.mark.parametrize("codec", list(pulsar.CompressionType.__members__))
async def test_a_large_message_that_the_stock_client_split_into_chunks(codec: str) -> None:
    content = b"".join(hashlib.sha256(b"%d" % number).hexdigest().encode() for number in range(300))

    def produce(client: Any) -> None:
        producer = client.create_producer(
            "t",
            chunking_enabled=True,
            batching_enabled=False,
            compression_type=getattr(pulsar.CompressionType, codec),
        )
        producer.send(content)
        producer.close()

    async with FakeBroker() as broker:
        broker.max_message_bytes = 4000
        async with await client_of(broker) as client:
            await with_stock(broker, produce)
            assert len(broker.of_type(T.SEND)) > 2
            consumer = await client.consumer("t", "s", initial_position="earliest")
            assert (await consumer.receive(60)).value == content
            if codec == "NONE":  # otherwise a chunk by itself cannot be decompressed
                assert b"".join(stored(broker.store)) == content
