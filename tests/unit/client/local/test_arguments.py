"""What callers may get wrong is refused by a named error, with the name of the argument, before anything happens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest

import heliograph
from heliograph.base.errors import BadRequestError, InvalidMessageIdError, NotFoundError, ReceiveTimeoutError
from heliograph.protocol.message_id import MessageId

SECONDS = 30


@pytest.mark.parametrize("properties", [[("a", "b")], "ab", 7, ["ab"], {"a": 1}, {1: "a"}])
def test_properties_that_are_no_mapping_of_text_are_refused(client: heliograph.Client, properties: Any) -> None:
    with client.producer("properties") as producer:
        sending: list[Callable[[], object]] = [
            lambda: producer.send("x", properties=properties),
            lambda: producer.send_many(["x"], properties=[properties]),
            producer.send_async("x", properties=properties).result,
        ]
        for send in sending:
            with pytest.raises(BadRequestError) as refused:
                send()
            assert refused.value.field == "properties"
        assert producer.last_sequence_id == -1


def test_text_that_utf_8_cannot_express_is_refused(client: heliograph.Client) -> None:
    half = "\ud800"
    with client.producer("halves") as producer:
        sending: list[tuple[str, Callable[[], object]]] = [
            ("value", lambda: producer.send(half)),
            ("value", lambda: producer.send_many(["x", half])),
            ("key", lambda: producer.send("x", key=half)),
            ("key", lambda: producer.send_many(["x"], keys=[half])),
            ("properties", lambda: producer.send("x", properties={"a": half})),
            ("properties", lambda: producer.send_many(["x"], properties=[{half: "a"}])),
            ("topic", lambda: client.producer(half)),
        ]
        for field, send in sending:
            with pytest.raises(BadRequestError) as refused:
                send()
            assert refused.value.field == field
        assert producer.last_sequence_id == -1


@pytest.mark.parametrize("name", ["n" * 1_025, 5])
def test_a_name_that_cannot_be_is_refused(client: heliograph.Client, name: Any) -> None:
    makes = (lambda: client.producer("names", name=name), 256), (lambda: client.consumer("names", "s", name=name), 1024)
    for make, most in makes:
        with pytest.raises(BadRequestError, match=r"the name of a (producer|consumer) is") as refused:
            make()
        assert (refused.value.field, refused.value.limit) == ("name", f"1 to {most} characters")


def test_a_name_of_a_consumer_that_brokers_take_is_not_refused(client: heliograph.Client) -> None:
    with client.consumer("names", "s", name="n" * 1_024, initial_position="earliest") as consumer:
        with client.producer("names") as producer:
            producer.send("x")
        assert consumer.receive(timeout=60).data == b"x"


@pytest.mark.parametrize("values", ["text", b"bytes", 7, None, {"a": 1}])
def test_values_that_are_no_list_are_refused(client: heliograph.Client, values: Any) -> None:
    with client.producer("lists") as producer, pytest.raises(BadRequestError) as refused:
        producer.send_many(values)
    assert refused.value.field == "values"


def test_values_of_a_generator_are_sent_with_their_nulls(client: heliograph.Client) -> None:
    values: Any = (value for value in ("a", None))
    with client.producer("generated") as producer:
        producer.send_many(values, keys=["k", "k"])
    with client.reader("generated", "earliest") as reader:
        assert [reader.receive(SECONDS).value for _ in range(2)] == [b"a", None]


@pytest.mark.parametrize("target", [time.time(), 1.5, math.nan, True, -1, 1 << 64, None, b"x", "2026-01-01"])
def test_a_seek_to_something_else_is_refused_and_moves_nothing(client: heliograph.Client, target: Any) -> None:
    client.producer("targets").send("x")
    with client.reader("targets", "earliest") as reader:
        with pytest.raises(InvalidMessageIdError) as refused:
            reader.seek(target)
        assert refused.value.field in ("target", "messageId")
        assert not isinstance(target, float) or "milliseconds" in str(refused.value)
        assert reader.receive(SECONDS).value == b"x"


@pytest.mark.parametrize("start", [5, 1.5, "there", None])
def test_a_reader_that_starts_at_something_else_is_refused(client: heliograph.Client, start: Any) -> None:
    with pytest.raises(BadRequestError):
        client.reader("starts", start)


@pytest.mark.parametrize("timeout", ["1", math.nan, b"1", [1]])
def test_a_time_that_is_no_number_is_refused(client: heliograph.Client, timeout: Any) -> None:
    with client.consumer("times", "s", type="shared") as consumer:
        calls: list[Callable[[Any], object]] = [consumer.receive, lambda seconds: consumer.receive_many(1, seconds)]
        for receive in calls:
            with pytest.raises(BadRequestError) as refused:
                receive(timeout)
            assert refused.value.field == "timeout"


@pytest.mark.parametrize("timeout", [0, -1, 0.01])
def test_when_nothing_comes_receive_raises_and_receive_many_returns_nothing(
    client: heliograph.Client, timeout: float
) -> None:
    with client.consumer("nothing", "s", type="shared") as consumer:
        with pytest.raises(ReceiveTimeoutError):
            consumer.receive(timeout)
        assert consumer.receive_many(10, timeout) == []


@pytest.mark.parametrize("limit", [0, "5", 1.5, None])
def test_a_number_of_messages_that_is_none_is_refused(client: heliograph.Client, limit: Any) -> None:
    with client.consumer("numbers", "s", type="shared") as consumer, pytest.raises(BadRequestError) as refused:
        consumer.receive_many(limit, 0)
    assert refused.value.field == "max_messages"


def test_what_is_no_message_is_not_acknowledged(client: heliograph.Client) -> None:
    with client.consumer("ids", "s") as consumer:
        calls: list[Callable[[Any], object]] = [
            consumer.ack,
            consumer.nack,
            consumer.ack_cumulative,
            lambda one: consumer.ack_many([one]),
        ]
        for call in calls:
            for given in ("1:2:-1", None, 7):
                with pytest.raises(BadRequestError) as refused:
                    call(given)
                assert refused.value.field == "messageId"


def test_the_text_of_an_id_becomes_an_id_that_can_be_acknowledged(client: heliograph.Client) -> None:
    client.producer("texts").send_many(["a", "b", "c"])
    client.producer("texts").send("d")
    with client.consumer("texts", "s", initial_position="earliest") as consumer:
        messages = [consumer.receive(SECONDS) for _ in range(4)]
        texts = [str(message.message_id) for message in messages]
        assert [MessageId.parse(text) for text in texts] == [message.message_id for message in messages]
        for text in (texts[0], texts[2], texts[3]):
            consumer.ack(MessageId.parse(text))
    with client.consumer("texts", "s") as consumer:
        assert consumer.receive(SECONDS).value == b"b"
        consumer.ack_cumulative(MessageId.parse(texts[1]))
    with client.consumer("texts", "s") as consumer:
        assert consumer.receive_many(10, 0.1) == []


@pytest.mark.parametrize("name", ["persistent://nosuch/ns/t", "public/nosuch/t", "t-partition-3"])
def test_a_topic_that_is_refused_for_good_is_refused_at_once(client: heliograph.Client, name: str) -> None:
    begun = time.monotonic()
    for opening in (
        lambda: client.producer(name).open(),
        lambda: client.consumer(name, "s"),
        lambda: client.reader(name),
    ):
        with pytest.raises(NotFoundError):
            opening()
    assert time.monotonic() - begun < client.options.operation_timeout_ms / 1_000 / 3
