"""Consumers against a fake broker: acknowledgements, positive and negative."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import heliograph
from heliograph.base import errors
from heliograph.client.aio.consumer import ack_group
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import bits_of, words_of
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.topics import publish, subscription_of, values_of
from tests.unit.client.world import client_of
from tests.waits import until


async def test_acknowledging_parts_of_a_batch() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, [str(index) for index in range(130)])
        messages = await consumer.receive_many(130, 60)
        await consumer.ack(messages[129])
        acked = subscription_of(broker).acked
        assert acked == {0: (1 << 129) - 1}
        await consumer.ack_many(message for message in messages if int(message.value) % 2)
        assert acked[0].bit_count() == 65
        await consumer.ack_many([message.message_id for message in messages[:129]])  # message ids alone work as well
        assert acked == {0: 0}


@pytest.mark.parametrize(("kind", "words"), [("exclusive", []), ("shared", [0]), ("key_shared", [0])])
async def test_a_whole_entry_is_named_where_entries_are_divided(kind: Any, words: list[int]) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["a", "b"])
        consumer = await client.consumer("t", "s", type=kind, initial_position="earliest")
        await consumer.ack_many([await consumer.receive(60), await consumer.receive(60)])
        (ack,) = broker.of_type(T.ACK)
        assert [list(entry.ack_set) for entry in ack.ack.message_id] == [words]
        assert subscription_of(broker).acked == {0: 0}


async def test_acknowledgements_of_one_turn_share_a_command() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        for batch in range(50):
            await publish(client, [str(batch)])
        messages: list[heliograph.Message] = []
        while len(messages) < 50:
            messages += await consumer.receive_many(50, 60)
        await asyncio.gather(*(consumer.ack(message) for message in messages))
        [command] = broker.of_type(T.ACK)
        assert len(command.ack.message_id) == 50
        assert command.ack.HasField("request_id")


async def test_a_command_carries_a_bounded_number_of_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:  # I15
    monkeypatch.setattr(ack_group, "GROUP_IDS_MAX", 10)
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest", type="shared")
        await publish(client, *([f"{index}"] for index in range(25)))
        messages = [await consumer.receive(60) for _ in range(25)]
        await asyncio.gather(consumer.ack_many(messages[:3]), consumer.ack_many(messages[3:]))
        sizes = [len(command.ack.message_id) for command in broker.of_type(T.ACK)]
        assert max(sizes) <= 10
        assert sum(sizes) == 25
        assert subscription_of(broker).acked == dict.fromkeys(range(25), 0)


async def test_an_acknowledgement_waits_for_the_answer_and_is_sent_again_after_a_reconnect() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, ["1"])
        message = await consumer.receive(60)
        broker.silent.add(T.ACK)
        acking = asyncio.ensure_future(consumer.ack(message))
        await until(lambda: broker.of_type(T.ACK))
        assert not acking.done()
        broker.silent.clear()
        broker.drop_connections()
        await acking
        assert subscription_of(broker).acked == {0: 0}
        with pytest.raises(TimeoutError):
            await consumer.receive(0.05)  # acknowledged before permits were granted: not delivered again


async def test_a_refused_acknowledgement_is_retried_unless_the_refusal_is_final() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, ["1"], ["2"])
        first, second = await consumer.receive(60), await consumer.receive(60)
        broker.refuse(T.ACK, pb.SERVICE_NOT_READY)
        await consumer.ack(first)
        broker.refuse(T.ACK, pb.NOT_ALLOWED_ERROR)
        with pytest.raises(errors.UnsupportedError):
            await consumer.ack(second)


@pytest.mark.slow
async def test_an_acknowledgement_that_is_never_confirmed_times_out() -> None:
    async with FakeBroker() as broker, await client_of(broker, operation_timeout_ms=800) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, ["1"])
        message = await consumer.receive(60)
        broker.silent.add(T.ACK)
        with pytest.raises(errors.RequestTimeoutError):
            await consumer.ack(message)


async def test_an_acknowledgement_fails_with_the_reason_why_its_consumer_failed() -> None:
    """The reason must reach the caller, not a timeout that follows from it."""
    async with FakeBroker() as broker, await client_of(broker, operation_timeout_ms=500) as client:
        await publish(client, ["1"], ["2"])
        consumer = await client.consumer("t", "s", initial_position="earliest")
        messages = await consumer.receive_many(1, 60)
        broker.refuse(T.SUBSCRIBE, pb.TOPIC_NOT_FOUND)
        broker.drop_connections()
        await until(lambda: consumer._inbox.failure is not None)
        for call in (consumer.ack, consumer.ack_cumulative):
            with pytest.raises(errors.TopicNotFoundError):
                await call(messages[0])


async def test_cumulative_acknowledgement() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest")
        await publish(client, ["1"], ["2", "3", "4"])
        messages: list[heliograph.Message] = []
        while len(messages) < 4:
            messages += await consumer.receive_many(4, 60)
        await consumer.ack_cumulative(messages[2])
        assert subscription_of(broker).acked == {0: 0, 1: 0b100}
        await consumer.ack_cumulative(messages[3].message_id)
        assert subscription_of(broker).acked == {0: 0, 1: 0}
        shared = await client.consumer("t", "other", type="shared")
        with pytest.raises(errors.UnsupportedError):
            await shared.ack_cumulative(messages[3])


async def test_a_negatively_acknowledged_message_is_redelivered() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer(
            "t", "s", type="shared", initial_position="earliest", nack_delay_ms=1, receiver_queue=10
        )
        await publish(client, ["1"], ["2"], ["3"])
        first, second, third = [await consumer.receive(60) for _ in range(3)]
        await consumer.nack(second)
        again = await consumer.receive(60)
        assert (again.message_id, again.redelivery_count) == (second.message_id, 1)
        await consumer.ack_many([first, again, third])
        with pytest.raises(TimeoutError):
            await consumer.receive(0.02)


async def test_a_negative_acknowledgement_rewinds_an_ordered_subscription() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", initial_position="earliest", nack_delay_ms=1)
        for index in range(5):
            await publish(client, [str(index)])
        messages = [await consumer.receive(60) for _ in range(3)]
        await consumer.ack(messages[0])
        await consumer.nack(messages[1])
        await until(lambda: broker.of_type(T.REDELIVER_UNACK))
        assert await values_of(consumer, 4) == [b"1", b"2", b"3", b"4"]


async def test_a_broker_that_sends_whole_batches_again_makes_nothing_come_twice() -> None:
    """The fake broker knows of no single messages, as brokers of earlier releases on key-shared subscriptions."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        consumer = await client.consumer("t", "s", type="shared", initial_position="earliest", nack_delay_ms=1)
        await publish(client, ["0", "1", "2", "3"])
        messages = await consumer.receive_many(4, 60)
        await consumer.ack_many([messages[0], messages[2]])
        await consumer.nack(messages[1])
        again = await consumer.receive(60)
        assert again.value == b"1"
        assert await consumer.receive_many(1, 0.1) == [], "the caller still has the last one"
        await consumer.nack(messages[3])
        last = await consumer.receive(60)
        assert last.value == b"3", "the caller still has the other one, which was delivered twice"
        await consumer.ack_many([again, last])
        assert broker.store.topics["persistent://public/default/t"].subscriptions["s"].acked == {0: 0}


@pytest.mark.parametrize("bits", [0, 1, 6, 1 << 63, (1 << 130) - 1])
def test_ack_sets_are_words_of_a_java_bit_set(bits: int) -> None:
    assert bits_of(words_of(bits)) == bits
    assert all(-(1 << 63) <= word < 1 << 63 for word in words_of(bits))
