"""The messages of received entries."""

from __future__ import annotations

import pickle
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.client.aio.consumer.delivery import ReceivedEntry
from heliograph.client.aio.consumer.message import NO_PROPERTIES, Message
from heliograph.client.aio.consumer.partition import PartitionConsumer
from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_single, full_head, plain_head
from heliograph.protocol.message_id import MessageId, received_id

TOPIC = "persistent://public/default/t-partition-2"
AGAIN = {"heliograph.delivery_attempt": "5", "heliograph.crashes": "0"}
PART = cast(PartitionConsumer, SimpleNamespace(epoch=0, seeks=0, partition=2, topic_name=TOPIC, decoders=None))


def test_messages_of_a_batch_have_what_is_theirs_and_what_is_the_entrys() -> None:
    heads = [full_head(1, f"k{number}", {"number": str(number)}, 500 + number) for number in range(3)]
    messages = received(encode_batch(metadata(), heads, [b"0", b"1", b"2"]))
    assert [fields_of(message) for message in messages] == [
        fields_of(
            Message(
                str(number).encode(),
                MessageId(7, 9, 2, number, 3, TOPIC),
                key=f"k{number}",
                properties={"number": str(number), **AGAIN},
                publish_time_ms=1_000,
                event_time_ms=500 + number,
                redelivery_count=4,
                topic=TOPIC,
                producer_name="p",
                index=97 + number,  # the last of three has 99
                broker_publish_time_ms=1_001,
            )
        )
        for number in range(3)
    ]


def test_a_message_that_is_no_batch_has_the_same_fields() -> None:
    (message,) = received(encode_single(metadata(), full_head(1, "k", {"x": "y"}, 500), b"0"))
    assert fields_of(message) == fields_of(
        Message(b"0", MessageId(7, 9, 2, -1, 0, TOPIC), "k", {"x": "y", **AGAIN}, 1_000, 500, 4, TOPIC, "p", 99, 1_001)
    )


def test_equal_neighbours_share_no_properties_that_a_caller_may_change() -> None:
    first, second = received(encode_batch(metadata(), [full_head(1, None, {"x": "y"}, None)] * 2, [b"0", b"1"]))
    cast(dict[str, str], first.properties)["x"] = "z"
    assert second.properties == {"x": "y", **AGAIN}
    plain, _ = received(encode_batch(metadata(), [plain_head(1)] * 2, [b"0", b"1"]), redelivery_count=0)
    assert plain.properties is NO_PROPERTIES


def test_acknowledged_messages_of_a_batch_are_left_out() -> None:
    section = encode_batch(metadata(), [plain_head(1)] * 3, [b"0", b"1", b"2"])
    assert [message.value for message in received(section, ack_set=[0b101])] == [b"0", b"2"]


def test_the_id_of_a_received_message_is_a_message_id() -> None:
    made, plain = received_id(7, 9, 2, 1, 3, TOPIC), MessageId(7, 9, 2, 1, 3, TOPIC)
    assert type(made) is MessageId
    assert [getattr(made, field.name) for field in fields(plain)] == [7, 9, 2, 1, 3, TOPIC, None]
    assert (made, hash(made), repr(made), pickle.loads(pickle.dumps(made))) == (plain, hash(plain), repr(plain), plain)
    assert made < MessageId(7, 9, 2, 2)
    older = object.__new__(MessageId)
    older.__setstate__([7, 9, 2, 1, 3, TOPIC])  # of a pickle before ``first_chunk``
    assert (str(older), older.begin, older.to_bytes()) == (str(plain), plain, plain.to_bytes())
    with pytest.raises(AttributeError):
        made.partition = 1  # type: ignore[misc]


def test_a_message_that_was_delivered_before_says_how_often() -> None:
    section = encode_batch(metadata(), [plain_head(1)] * 2, [b"0", b"1"])
    for message in received(section, crashes=2):
        assert (message.delivery_attempt, message.redelivery_count, message.crashes) == (7, 4, 2)
        assert message.properties == {"heliograph.delivery_attempt": "7", "heliograph.crashes": "2"}
        assert pickle.loads(pickle.dumps(message)).crashes == 2
        assert "lost with a consumer before" in message._repr_html_()
    first = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledger_id=7, entry_id=9))
    for message in ReceivedEntry(PART, first, memoryview(section)).messages():
        assert (message.delivery_attempt, message.crashes, dict(message.properties)) == (1, 0, {})


def fields_of(message: Message) -> dict[str, Any]:
    """Return all that a message says; two messages are equal if they have the same id."""
    return {each.name: getattr(message, each.name) for each in fields(message) if not each.name.startswith("_")}


def metadata() -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1_000)


def received(section: bytes, **command: Any) -> list[Message]:
    """Return the messages of an entry, which the broker gave the index 99 and a time."""
    noted = entries.encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=1_001, index=99))
    position = pb.MessageIdData(ledger_id=7, entry_id=9)
    delivered = pb.CommandMessage(consumer_id=1, message_id=position, **{"redelivery_count": 4, **command})
    return list(ReceivedEntry(PART, delivered, memoryview(noted + section)).messages())
