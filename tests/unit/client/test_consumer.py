"""Consumers and readers against a fake broker: delivery, redelivery, seeking, reconnecting."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

import heliograph
from heliograph.base import errors
from heliograph.client.options import ClientOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_single, heads_of, plain_head
from heliograph.protocol.entry import encode_entry
from tests.unit.client.fake_broker import FakeBroker, FakeStore, T
from tests.unit.client.topics import publish, subscription_of, values_of
from tests.unit.client.world import TOPIC, client_of
from tests.waits import until


async def test_messages_carry_what_the_producer_gave_them() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        async with client.producer("t", name="me") as producer:
            ids = await producer.send_many(
                ["a", "b"], keys=["k", None], properties=[{"x": "y"}, None], event_times_ms=[None, 7]
            )
            ids.append(await producer.send("c", key="z"))
        messages = [await consumer.receive(60) for _ in range(3)]
        assert [message.message_id for message in messages] == ids
        assert [message.value for message in messages] == [b"a", b"b", b"c"]
        assert [message.key for message in messages] == ["k", None, "z"]
        assert [dict(message.properties) for message in messages] == [{"x": "y"}, {}, {}]
        assert [message.event_time_ms for message in messages] == [None, 7, None]
        assert {(each.topic, each.producer_name, each.redelivery_count) for each in messages} == {(TOPIC, "me", 0)}
        assert messages[0].publish_time_ms > 1_600_000_000_000
        assert pickle.loads(pickle.dumps(messages[0])) == messages[0]


async def test_receiving_times_out_without_harm() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s")
        for kind in (errors.ReceiveTimeoutError, TimeoutError):
            with pytest.raises(kind):
                await consumer.receive(0.01)
        assert await consumer.receive_many(10, 0.01) == []
        waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await publish(client, ["1", "2"])
        first, second = await asyncio.gather(*waiting[1:])
        assert {first.value, second.value} == {b"1", b"2"}


async def test_permits_are_granted_ahead_and_renewed_as_messages_are_taken() -> None:  # I15
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest", receiver_queue=10)
        for batch in range(40):
            await publish(client, [str(batch)])
        await until(lambda: len(subscription_of(broker).consumers[0].unacked) == 10)
        assert await values_of(consumer, 40) == [b"%d" % index for index in range(40)]
        granted = sum(command.flow.message_permits for command in broker.of_type(T.FLOW))
        assert 40 <= granted <= 50


async def test_no_permits_are_granted_while_too_many_bytes_are_held() -> None:  # I15
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer(
            "t", "s", initial_position="earliest", receiver_queue=4, receiver_bytes_max=1500
        )
        for _ in range(8):
            await publish(client, ["x" * 1000])
        await values_of(consumer, 2)  # half of the queue is taken, but two messages are above the bound
        assert sum(command.flow.message_permits for command in broker.of_type(T.FLOW)) == 4
        await values_of(consumer, 6)


async def test_a_lost_connection_drops_untaken_messages_and_they_are_redelivered() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, [str(index) for index in range(10)], ["10"])
        first = await consumer.receive_many(3, 60)
        await consumer.ack_many(first)
        broker.drop_connections()
        await until(lambda: len(broker.of_type(T.SUBSCRIBE)) == 2)
        assert await values_of(consumer, 8) == [b"%d" % index for index in range(3, 11)]


async def test_a_consumer_follows_its_topic_to_another_broker_and_waits_until_its_old_connection_is_noticed() -> None:
    store = FakeStore()
    async with FakeBroker(store) as second, FakeBroker(store) as first, await client_of(first) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, ["1"])
        await consumer.ack(await consumer.receive(60))
        first.redirects[TOPIC] = second.url
        second.refuse(T.SUBSCRIBE, pb.CONSUMER_BUSY)
        first.drop_connections()
        await publish(client, ["2"])
        assert (await consumer.receive(60)).value == b"2"
        assert len(second.of_type(T.SUBSCRIBE)) == 2


async def test_an_exclusive_subscription_takes_one_consumer() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        first = await client.consumer("t", "s")
        with pytest.raises(errors.ConsumerBusyError):
            await client.consumer("t", "s")
        await first.close()
        await client.consumer("t", "s")


async def test_a_consumer_that_is_refused_for_good_says_why() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s")
        waiting = asyncio.ensure_future(consumer.receive())
        broker.refuse(T.SUBSCRIBE, pb.TOPIC_NOT_FOUND, "the topic was deleted")
        broker.drop_connections()
        with pytest.raises(errors.TopicNotFoundError, match="was deleted"):
            await waiting


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(
    ("target", "inclusive", "expected"),
    [
        ("earliest", False, [b"0", b"1", b"2", b"3", b"4"]),
        ("latest", False, [b"5"]),
        (2, False, [b"3", b"4"]),
        (2, True, [b"2", b"3", b"4"]),
    ],
)
async def test_seeking(target: Any, inclusive: bool, expected: list[bytes], closes: bool) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.closes_on_seek = closes
        consumer = await client.consumer("t", "s", initial_position="earliest", receiver_queue=3)
        await publish(client, ["0"], ["1", "2", "3"], ["4"])
        messages = [await consumer.receive(60) for _ in range(5)]
        await consumer.seek(messages[target].message_id if isinstance(target, int) else target, inclusive=inclusive)
        if target == "latest":
            await publish(client, ["5"])
        assert await values_of(consumer, len(expected)) == expected
        with pytest.raises(TimeoutError):
            await consumer.receive(0.02)


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_acknowledging_what_came_before_a_seek_has_no_effect(kind: Any) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", type=kind, initial_position="earliest")
        await publish(client, ["0"], ["1", "2"])
        before = [await consumer.receive(60) for _ in range(3)]
        await consumer.seek("earliest")
        await consumer.ack_many(before[:2])
        if kind == "exclusive":
            await consumer.ack_cumulative(before[2])
        assert subscription_of(broker).acked == {}
        messages = [await consumer.receive(60) for _ in range(3)]
        await consumer.ack(messages[0])
        assert subscription_of(broker).acked == {0: 0}


async def test_seeking_by_time_and_bad_targets() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, ["0"], ["1"])
        first = await consumer.receive(60)
        await consumer.seek(first.publish_time_ms)
        assert (await consumer.receive(60)).value == b"0"
        with pytest.raises(errors.InvalidMessageIdError):
            await consumer.seek("tomorrow")


async def test_several_topics_and_partitions_feed_one_consumer() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.store.partitions[TOPIC] = 3
        consumer = await client.consumer(["t", "other"], "s", initial_position="earliest")
        async with client.producer("t") as producer:
            await producer.send_many([str(index) for index in range(60)], keys=[str(index) for index in range(60)])
        await publish(client, ["x"], topic="other")
        messages: list[heliograph.Message] = []
        while len(messages) < 61:
            messages += await consumer.receive_many(100, 60)
        await consumer.ack_many([*messages[:30], *(message.message_id for message in messages[30:])])
        for topic, count in ((f"{TOPIC}-partition-0", 1), ("persistent://public/default/other", 1)):
            assert list(subscription_of(broker, topic=topic).acked.values()) == [0] * count
        with pytest.raises(errors.BadRequestError):
            await consumer.ack(heliograph.MessageId(1, 2, 9))


async def test_a_message_of_a_new_partition_is_acknowledged_while_another_one_still_opens() -> None:
    async with FakeBroker() as broker, await client_of(broker, partitions_update_ms=5) as client:
        broker.store.partitions[TOPIC] = 1
        consumer = await client.consumer("t", "s")
        broker.silent_after[T.SUBSCRIBE] = 2
        await publish(client, ["new"], topic="t-partition-1")
        broker.store.partitions[TOPIC] = 3
        message = await consumer.receive(60)
        assert message.value == b"new"
        await consumer.ack(message)
        assert subscription_of(broker, topic=f"{TOPIC}-partition-1").acked == {0: 0}


@pytest.mark.parametrize(
    ("chunks", "acknowledged"),
    [
        ((1, 0, 1, 2), {0, 1, 2, 3}),  # the first one is the last chunk of a message whose first chunk is gone
        ((0, 1, 1, 2), {0, 1, 2, 3}),  # its producer lost a receipt and sent everything unconfirmed again
        ((0, 1, 0, 1, 2), {0, 1, 2, 3, 4}),
        ((0, 1, 2, 1, 2), {0, 1, 2}),  # repetitions after a complete message cannot be told from a new one
    ],
)
async def test_chunks_are_put_together_and_acknowledged_together(
    chunks: tuple[int, ...], acknowledged: set[int]
) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        whole, topic = b"".join(bytes([index]) * 10 for index in range(3)), broker.store.topics[TOPIC]
        for chunk in chunks:
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, uuid="p-1")
            metadata.num_chunks_from_msg, metadata.chunk_id, metadata.total_chunk_msg_size = 3, chunk, len(whole)
            part = whole[10 * chunk : 10 * chunk + 10]
            topic.entries.append(encode_single(metadata, plain_head(10), part))
        consumer = await client.consumer("t", "s", initial_position="earliest")
        message = await consumer.receive(10)
        assert message.value == whole
        await consumer.ack(message)
        assert subscription_of(broker).acked == dict.fromkeys(acknowledged, 0)


async def test_chunks_of_two_messages_with_the_same_uuid_are_not_mixed() -> None:
    """A producer without deduplication that restarts counts its messages from 0 again."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        topic = broker.store.topics[TOPIC]
        for chunk, text in ((0, b"old"), (0, b"new"), (1, b"er")):
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uuid="p-0")
            metadata.num_chunks_from_msg, metadata.chunk_id, metadata.total_chunk_msg_size = 2, chunk, 5
            topic.entries.append(encode_single(metadata, plain_head(len(text)), text))
        consumer = await client.consumer("t", "s", initial_position="earliest")
        assert (await consumer.receive(60)).value == b"newer"


async def test_an_entry_damaged_in_transit_is_sent_again() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["fine"])
        section = broker.store.topics[TOPIC].entries[0]
        broker.store.topics[TOPIC].entries[0] = section[:-1] + b"!"
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await until(lambda: len(broker.of_type(T.SUBSCRIBE)) >= 2)
        broker.store.topics[TOPIC].entries[0] = section
        assert (await consumer.receive(60)).value == b"fine"


async def test_an_entry_that_cannot_be_unpacked_is_reported_once_and_skipped() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["before"])
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        section = encode_batch(metadata, heads_of([b"abc"], None), [b"abc"])
        metadata.num_messages_in_batch = 2
        broker.store.topics[TOPIC].entries.append(encode_entry(metadata, section[-10:]))
        await publish(client, ["after"])
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await until(lambda: len(subscription_of(broker).consumers[0].unacked) == 3)
        assert (await consumer.receive(60)).value == b"before"
        with pytest.raises(errors.ProtocolError):
            await consumer.receive(60)
        assert (await consumer.receive(60)).value == b"after"


async def test_the_end_of_a_topic_is_reported_after_its_messages() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, ["last"])
        await until(lambda: subscription_of(broker).consumers[0].unacked)
        consumer_id = subscription_of(broker).consumers[0].consumer_id
        broker.connections[0].answer(reached_end_of_topic=pb.CommandReachedEndOfTopic(consumer_id=consumer_id))
        assert (await consumer.receive(60)).value == b"last"
        with pytest.raises(errors.TopicTerminatedError):
            await consumer.receive(60)


async def test_unsubscribing_deletes_the_subscription() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s")
        await consumer.unsubscribe()
        assert not broker.store.topics[TOPIC].subscriptions
        with pytest.raises(errors.AlreadyClosedError):
            await consumer.receive()


async def test_unsubscribing_that_failed_half_way_can_be_called_again() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.store.partitions[TOPIC] = 2
        consumer = await client.consumer("t", "s")
        broker.refuse(T.UNSUBSCRIBE, pb.CONSUMER_BUSY)
        with pytest.raises(errors.HeliographError):
            await consumer.unsubscribe()
        await until(lambda: len(broker.of_type(T.UNSUBSCRIBE)) == 2)
        await consumer.unsubscribe()
        assert [broker.store.topics[f"{TOPIC}-partition-{n}"].subscriptions for n in range(2)] == [{}, {}]


async def test_iterating_ends_when_the_consumer_is_closed() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, ["1", "2"])
        got = []
        async for message in consumer:
            got.append(message.value)
            if len(got) == 2:
                await consumer.close()
        assert got == [b"1", b"2"]
        with pytest.raises(errors.AlreadyClosedError):
            await consumer.ack(message)


async def test_a_reader_starts_where_its_options_say() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["0"], ["1", "2"], ["3"])
        async with client.reader("t", "earliest") as reader:
            messages = [await reader.receive(60) for _ in range(4)]
            assert not await reader.has_message_available()
            with pytest.raises(errors.UnsupportedError):
                await reader.ack(messages[0])
        for index in range(4):
            for inclusive in (False, True):
                place = messages[index].message_id
                async with client.reader("t", place, inclusive=inclusive) as reader:
                    expected = [message.value for message in messages[index + (not inclusive) :]]
                    assert await reader.has_message_available() == bool(expected)
                    assert await values_of(reader, len(expected)) == expected
        async with client.reader("t") as reader:
            assert not await reader.has_message_available()
            await publish(client, ["4"])
            assert await reader.has_message_available()
            assert (await reader.receive(60)).value == b"4"
        assert not broker.store.topics[TOPIC].subscriptions


async def test_a_reader_resumes_after_its_last_message_after_a_reconnect() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["0", "1", "2"], ["3"], ["4"])
        reader = await client.reader("t", "earliest")
        assert await values_of(reader, 2) == [b"0", b"1"]
        broker.drop_connections()
        await until(lambda: len(broker.of_type(T.SUBSCRIBE)) == 2)
        assert await values_of(reader, 2) == [b"2", b"3"]
        await reader.seek("earliest")
        assert await values_of(reader, 5) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("options", "field"), [({"type": "pushed"}, "type"), ({"receiver_queue": 0}, "receiver_queue"), ({"q": 1}, "q")]
)
def test_bad_options_name_their_field(options: dict[str, Any], field: str) -> None:
    client = heliograph.AsyncClient(ClientOptions(("pulsar://127.0.0.1:1",)))
    with pytest.raises(errors.InvalidConfigError) as caught:
        client.consumer("t", "s", **options)
    assert caught.value.field == field
    with pytest.raises(errors.BadRequestError):
        client.consumer([], "s")
    with pytest.raises(errors.BadRequestError):
        client.consumer("t", "")
