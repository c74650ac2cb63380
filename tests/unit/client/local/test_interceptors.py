"""Interceptors: they see and change messages, learn outcomes, and lose nothing when they raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import heliograph
from heliograph.base.errors import HeliographError
from heliograph.client.aio.consumer.partition import PartitionConsumer
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.topics import publish
from tests.unit.client.world import client_of
from tests.waits import until

SECONDS = 60


class Marking(heliograph.ProducerInterceptor):
    """Marks messages and notes outcomes."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.outcomes: list[tuple[Any, bool, str]] = []

    def before_send(self, message: heliograph.OutgoingMessage) -> heliograph.OutgoingMessage:
        properties = {**(message.properties or {}), self.mark: "1"}
        return message.replace(value=message.value + self.mark, properties=properties)

    def on_send_acknowledged(
        self,
        message: heliograph.OutgoingMessage,
        message_id: heliograph.MessageId | None,
        error: HeliographError | None,
    ) -> None:
        self.outcomes.append((message.value, message_id is not None, type(error).__name__))


class Raising(heliograph.ProducerInterceptor, heliograph.ConsumerInterceptor):
    """Fails everywhere."""

    def before_send(self, message: heliograph.OutgoingMessage) -> heliograph.OutgoingMessage:
        raise RuntimeError("before_send")

    def on_send_acknowledged(self, *_: Any) -> None:
        raise RuntimeError("on_send_acknowledged")

    def before_consume(self, message: heliograph.Message) -> heliograph.Message:
        raise RuntimeError("before_consume")

    def on_acknowledge(self, *_: Any) -> None:
        raise RuntimeError("on_acknowledge")

    def on_acknowledge_cumulative(self, *_: Any) -> None:
        raise RuntimeError("on_acknowledge_cumulative")

    def on_negative_ack(self, *_: Any) -> None:
        raise RuntimeError("on_negative_ack")


class Noting(heliograph.ConsumerInterceptor):
    """Changes values and notes acknowledgements."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, str]] = []

    def before_consume(self, message: heliograph.Message) -> heliograph.Message:
        return message.with_value(message.value + b"!")

    def on_acknowledge(self, message_ids: Sequence[heliograph.MessageId], error: HeliographError | None) -> None:
        self.told.append(("ack", len(message_ids), type(error).__name__))

    def on_acknowledge_cumulative(self, message_id: heliograph.MessageId, error: HeliographError | None) -> None:
        self.told.append(("cumulative", 1, type(error).__name__))

    def on_negative_ack(self, message_ids: Sequence[heliograph.MessageId]) -> None:
        self.told.append(("nack", len(message_ids), ""))

    def on_ack_timeout(self, message_ids: Sequence[heliograph.MessageId]) -> None:
        self.told.append(("timeout", message_ids[0].entry_id, message_ids[0].topic))


def test_messages_are_changed_in_order_and_outcomes_are_told(client: heliograph.Client) -> None:
    first, second, noting = Marking("a"), Marking("b"), Noting()
    with client.producer("marked", interceptors=[first, Raising(), second]) as producer:
        producer.send("1", key="k")
        producer.send_many(["2", "3"], properties=[{"own": "x"}, None])
    assert first.outcomes == second.outcomes == [(value, True, "NoneType") for value in ("1ab", "2ab", "3ab")]
    with client.consumer(
        "marked", "s", initial_position="earliest", interceptors=[Raising(), noting], nack_delay_ms=0
    ) as consumer:
        messages = [consumer.receive(SECONDS) for _ in range(3)]
        assert [(message.data, message.value) for message in messages] == [
            (f"{n}ab".encode(), f"{n}ab!".encode()) for n in (1, 2, 3)
        ]
        assert [dict(message.properties) for message in messages] == [
            {"a": "1", "b": "1"}, {"own": "x", "a": "1", "b": "1"}, {"a": "1", "b": "1"},
        ]  # fmt: skip
        assert messages[0].key == "k"
        consumer.nack(messages[2])
        consumer.ack_many(messages[:2])
        consumer.ack_cumulative(messages[2])
    assert noting.told == [("nack", 1, ""), ("ack", 2, "NoneType"), ("cumulative", 1, "NoneType")]
    with client.reader("marked", "earliest", interceptors=[noting]) as reader:
        assert [reader.receive(SECONDS).value for _ in range(3)] == [b"1ab!", b"2ab!", b"3ab!"]
        assert not reader.has_message_available()


def test_a_value_of_another_kind_is_passed_over(client: heliograph.Client, caplog: pytest.LogCaptureFixture) -> None:
    class Nothing(heliograph.ProducerInterceptor, heliograph.ConsumerInterceptor):
        def before_send(self, message: heliograph.OutgoingMessage) -> Any:
            return None

        def before_consume(self, message: heliograph.Message) -> Any:
            return None

    client.producer("nothing", interceptors=[Nothing()]).send("1")
    with client.reader("nothing", "earliest", interceptors=[Nothing()]) as reader:
        assert reader.receive(SECONDS).value == b"1"
    assert {record.message.partition(" ")[0] for record in caplog.records} == {
        "Nothing.before_send", "Nothing.before_consume",
    }  # fmt: skip


async def test_failures_are_told_too() -> None:
    async with FakeBroker() as broker, await client_of(broker, operation_timeout_ms=500) as client:
        marking, noting = Marking("x"), Noting()
        producer = client.producer("t", interceptors=[marking])
        await producer.open()
        for send in (lambda: producer.send("1"), lambda: producer.send_many(["2"])):
            broker.refuse(T.SEND, pb.TOPIC_TERMINATED_ERROR)
            with pytest.raises(HeliographError):
                await send()
        assert marking.outcomes == [("1x", False, "TopicTerminatedError"), ("2x", False, "TopicTerminatedError")]
        await publish(client, ["3"])
        consumer = await client.consumer("t", "s", initial_position="earliest", interceptors=[noting])
        broker.refuse(T.ACK, pb.NOT_ALLOWED_ERROR)
        with pytest.raises(HeliographError) as caught:
            await consumer.ack(await consumer.receive(SECONDS))
        assert noting.told == [("ack", 1, type(caught.value).__name__)]


async def test_late_acknowledgements_are_told() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        noting = Noting()
        await publish(client, ["1"])
        consumer = await client.consumer(
            "t", "s", type="shared", initial_position="earliest", interceptors=[noting], ack_timeout_ms=1000
        )
        await consumer.receive(SECONDS)
        await until(lambda: noting.told)
        assert noting.told == [("timeout", 0, "persistent://public/default/t")]
        assert isinstance(consumer._parts["persistent://public/default/t"], PartitionConsumer)
        assert (await consumer.receive(SECONDS)).redelivery_count == 1
