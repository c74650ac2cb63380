"""What a peek unpacks and shows of entries that are small as they are stored, and large as they are shown (I15)."""

from __future__ import annotations

import tracemalloc

import pytest

from heliograph.actors.broker.admin.owned_cursors import _messages
from heliograph.actors.broker.limits.answers import MESSAGE_BYTES, PEEK_BYTES_MAX
from heliograph.actors.broker.records.position import Position
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch
from heliograph.protocol.entry import ENTRY_MESSAGES_MAX, encode_entry
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns


def batch(messages: int, value: bytes = b"") -> bytes:
    """Return a compressed batch of equal messages: a few kilobytes, whatever their number."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    heads = [b"\0\0\0\2\x18" + bytes([len(value)])] * messages
    return encode_batch(metadata, heads, [value] * messages, codec=pb.ZSTD)


def shown(entry: bytes, most: int, room: int = PEEK_BYTES_MAX) -> tuple[int, int]:
    found, size = _messages(Position(1, 1), -1, entry, None, most, room)
    return len(found), size


def test_a_peek_takes_no_more_messages_than_it_shows() -> None:
    entry = batch(200_000, b"v")
    assert len(entry) < 10_000
    tracemalloc.start()
    try:
        assert shown(entry, 5)[0] == 5
        few = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        count, size = shown(entry, 1 << 30)
        all_that_fit = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert few < 8 << 20, "the plain batch, and nothing for each message"
    assert count == PEEK_BYTES_MAX // (MESSAGE_BYTES + 1)
    assert size > PEEK_BYTES_MAX, "says that there are more"
    assert all_that_fit < 32 << 20


def test_one_message_is_always_shown() -> None:
    assert shown(batch(3, b"v" * 100), 10, room=0) == (1, 2 * (MESSAGE_BYTES + 100))
    assert shown(batch(3), 10)[0] == 3


@pytest.mark.parametrize("messages", [ENTRY_MESSAGES_MAX, ENTRY_MESSAGES_MAX + 1, (1 << 31) - 1])
async def test_an_entry_of_too_many_messages_is_refused(messages: int) -> None:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=messages,
        compression=pb.ZSTD,
        uncompressed_size=min(6 * messages, (1 << 32) - 1),
    )
    async with LoneBroker("orders") as lone:
        client = Client(lone.broker)
        client.say(T(type=T.PRODUCER, producer=pb.CommandProducer(topic="orders", producer_id=1, request_id=1)))
        await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=0)), encode_entry(metadata, b"x"))
        kind = T.SEND_RECEIPT if messages <= ENTRY_MESSAGES_MAX else T.SEND_ERROR
        await turns(lambda: client.answer(kind))
        client.leave()
