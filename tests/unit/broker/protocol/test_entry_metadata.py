"""What clients and administration see of the broker's metadata in front of entries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.clock import wall_ms
from heliograph.base.errors import InvalidConfigError
from heliograph.client.aio.consumer.chunks import ChunkAssembler
from heliograph.client.aio.consumer.delivery import ReceivedEntry
from heliograph.client.options import ConsumerOptions
from heliograph.pipelines.reading.columns import VALUE, Rows
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_entry_of, encode_single, full_head, heads_of
from heliograph.protocol.entry import broker_metadata_of, broker_metadata_size, encode_broker_metadata, encode_entry
from heliograph.protocol.frame import FRAME_SLACK_BYTES
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns
from tests.waits import until

TOPIC = "orders"
LONG_AGO_MS = 1_000  # of the producer's clock
BATCH = encode_entry_of("p", 0, LONG_AGO_MS, [b"a", b"b", b"c"], ["k", "l", "k"])
SINGLE = encode_single(
    pb.MessageMetadata(producer_name="p", sequence_id=3, publish_time=LONG_AGO_MS), full_head(1, "l", None, None), b"d"
)
CAPABLE: dict[str, Any] = {"feature_flags": pb.FeatureFlags(supports_broker_entry_metadata=True)}


async def publish(broker: LoneBroker, *sections: bytes, topic: str = TOPIC) -> None:
    client = Client(broker.broker)
    client.say(T(type=T.PRODUCER, producer=pb.CommandProducer(topic=topic, producer_id=1, request_id=1)))
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    for number, section in enumerate(sections):
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=number)), section)
    await turns(lambda: sum(one.type == T.SEND_RECEIPT for one in client.transport.answers) == len(sections))
    client.leave()


async def read(broker: LoneBroker, count: int, topic: str = TOPIC, **connect: Any) -> list[bytes]:
    """Return the first entries of the topic as a client gets them."""
    client = Client(broker.broker, **connect)
    wanted = pb.CommandSubscribe(
        topic=topic,
        subscription=f"reader-{wall_ms()}",
        sub_type=pb.CommandSubscribe.EXCLUSIVE,
        consumer_id=1,
        request_id=1,
        durable=False,
        start_message_id=pb.MessageIdData(ledger_id=(1 << 64) - 1, entry_id=(1 << 64) - 1),
    )
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    client.say(T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=100)))
    await turns(lambda: len(client.transport.sections) == count)
    client.leave()
    return client.transport.sections


@pytest.mark.parametrize(
    ("exposed", "connect", "gets_it"),
    [
        (True, CAPABLE, True),
        (True, {}, False),
        (True, {**CAPABLE, "protocol_version": 17}, False),
        (False, CAPABLE, False),
    ],
)
async def test_entries_go_with_their_metadata_to_clients_that_can_read_it(
    exposed: bool, connect: dict[str, Any], gets_it: bool
) -> None:
    async with LoneBroker(TOPIC, entry_metadata="both", entry_metadata_exposed=exposed) as lone:
        await publish(lone, BATCH, SINGLE)
        found = await read(lone, 2, **connect)
        if not gets_it:
            assert found == [BATCH, SINGLE]
            return
        assert [broker_metadata_of(section).index for section in found] == [2, 3]
        assert [section[broker_metadata_size(section) :] for section in found] == [BATCH, SINGLE]


async def test_clients_see_nothing_of_it_unless_it_is_asked_for() -> None:
    async with LoneBroker(TOPIC) as lone:
        await publish(lone, BATCH, SINGLE)
        assert await read(lone, 2, **CAPABLE) == [BATCH, SINGLE]
        (stored,) = [ledger.entries for ledger in lone.ledgers.ledgers.values() if len(ledger.entries) == 2]
        assert [one[broker_metadata_size(one) :] for one in stored] == [BATCH, SINGLE]
        assert [broker_metadata_of(one).latest_published for one in stored] == [LONG_AGO_MS] * 2


async def test_the_broker_believes_no_client_with_its_own_metadata() -> None:
    forged = encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=1, index=1 << 40))
    async with LoneBroker(TOPIC, entry_metadata="index") as lone:
        await publish(lone, forged + BATCH, forged + forged + SINGLE)
        found = await read(lone, 2, **CAPABLE)
        assert [broker_metadata_of(section).index for section in found] == [2, 3]
        assert [section[broker_metadata_size(section) :] for section in found] == [BATCH, SINGLE]


async def test_an_entry_of_the_greatest_size_has_room_for_the_metadata() -> None:
    limit = 1 << 20
    async with LoneBroker(TOPIC, entry_metadata="both", max_message_bytes=limit) as lone:
        assert lone.broker.config.ledgers.writer.entry_bytes_max >= limit + FRAME_SLACK_BYTES + 32
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        spare = limit + FRAME_SLACK_BYTES - len(encode_entry(metadata, b"")) - 40  # 40: the command and the frame
        await publish(lone, encode_entry(metadata, b"x" * spare), SINGLE)
        assert lone.ledgers.writers  # no writer failed, or the second entry would have no receipt


async def test_clients_that_see_the_brokers_time_seek_by_it() -> None:
    """Seek by time, and the id of a message by time."""
    async with LoneBroker(TOPIC, entry_metadata="time") as lone:
        before = wall_ms()
        await publish(lone, BATCH)
        topic = lone.broker.topics.find(TopicName.parse(TOPIC))
        assert topic is not None
        assert await topic.index_at_time(before) == 0  # by the producer's clock it would be older
        assert await topic.index_at_time(wall_ms() + 1_000) == 1
        assert await topic.reader.index_at_time(LONG_AGO_MS) == 0
        assert await topic.reader.index_at_time(LONG_AGO_MS + 1) == 1
        assert await topic.reader.stored_ms(0) >= before
        reader = topic.reader
        topic.reader._cache._entries.clear()  # type: ignore[attr-defined]
        assert await reader.stored_ms(0) >= before  # also when it is read from a bookie


async def test_administration_shows_index_and_time() -> None:
    async with LoneBroker(TOPIC, entry_metadata="both") as lone:
        before = wall_ms()
        await publish(lone, BATCH, SINGLE)
        cursors = lone.broker.admin.cursors
        shown = await cursors.examine(TOPIC, "earliest", 1)
        assert [(one["index"], one["payload"]) for one in shown] == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert all(one["broker_publish_time_ms"] >= before for one in shown)
        assert all(one["publish_time_ms"] == LONG_AGO_MS for one in shown)
        (whole,) = await cursors.examine(TOPIC, "latest", 1, as_entry=True)
        noted = pb.BrokerEntryMetadata.FromString(whole["broker_metadata"])
        assert (noted.index, noted.broker_timestamp >= before) == (3, True)
        assert whole["payload"] == b"d"


async def test_compaction_keeps_the_metadata() -> None:
    async with LoneBroker(TOPIC, entry_metadata="both") as lone:
        await publish(lone, BATCH, SINGLE)
        topic = lone.broker.topics.find(TopicName.parse(TOPIC))
        assert topic is not None
        topic.compaction.start()
        await until(lambda: not topic.compaction.is_running)
        chain, reader = await topic.view(True)
        kept = [(await reader.read(at, 1, 1))[0][1] for at in range(chain.first, chain.end)]
        assert [broker_metadata_of(entry.payload).index for entry in kept] == [2, 3]
        assert [(entry.live, bytes(entry.client_bytes()) == entry.payload) for entry in kept] == [
            (0b100, False),  # only "c" is left: "d" has the key of "b"
            (None, False),
        ]


async def test_a_topic_that_stores_nothing_notes_nothing() -> None:
    name = "non-persistent://public/default/live"
    async with LoneBroker(TOPIC, name, entry_metadata="both") as lone:
        consumer = Client(lone.broker, **CAPABLE)
        wanted = pb.CommandSubscribe(
            topic=name, subscription="s", sub_type=pb.CommandSubscribe.EXCLUSIVE, consumer_id=1, request_id=1
        )
        consumer.say(T(type=T.SUBSCRIBE, subscribe=wanted))
        await turns(lambda: consumer.answer(T.SUCCESS))
        consumer.say(T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=10)))
        await publish(lone, BATCH, topic=name)
        await turns(lambda: consumer.transport.sections == [BATCH])


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="entry_metadata"):
        BrokerConfig("b", entry_metadata="all")


# -- readers of ours


class _Consumer:
    epoch, seeks, partition, topic_name = 0, 0, -1, f"persistent://public/default/{TOPIC}"


def received(section: bytes) -> ReceivedEntry:
    command = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledger_id=7, entry_id=1))
    return ReceivedEntry(_Consumer(), command, memoryview(section))  # type: ignore[arg-type]


def test_handles_number_the_messages_of_an_entry() -> None:
    noted = encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=77, index=12))
    messages = list(received(noted + BATCH).messages())
    assert [(one.value, one.index) for one in messages] == [(b"a", 10), (b"b", 11), (b"c", 12)]
    assert {one.broker_publish_time_ms for one in messages} == {77}
    (single,) = received(noted + SINGLE).messages()
    assert (single.index, single.publish_time_ms, single.broker_publish_time_ms) == (12, LONG_AGO_MS, 77)
    assert [(one.index, one.broker_publish_time_ms) for one in received(BATCH).messages()] == [(None, None)] * 3
    only_time = encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=77))
    assert [one.index for one in received(only_time + SINGLE).messages()] == [None]
    assert (received(only_time + SINGLE).published_ms, received(SINGLE).published_ms) == (77, LONG_AGO_MS)


async def test_chunks_are_put_together_behind_their_metadata() -> None:
    chunks: list[ReceivedEntry] = []
    loop = asyncio.get_running_loop()
    assembler = ChunkAssembler(ConsumerOptions(("t",), "s"), loop, chunks.extend, chunks.extend, lambda: True)  # type: ignore[arg-type]
    for number, part in enumerate((b"one ", b"and two")):
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, uuid="u", num_chunks_from_msg=2, chunk_id=number
        )
        block = encode_broker_metadata(pb.BrokerEntryMetadata(index=4 + number))
        chunks.append(received(block + encode_entry(metadata, part)))
        chunks[-1].entry_id = number
    assert [assembler.complete(chunk) for chunk in chunks] == [False, True]
    (message,) = chunks[-1].messages()
    assert (message.value, message.index) == (b"one and two", 5)


def test_tables_are_read_from_entries_of_both_kinds() -> None:
    noted = encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=77, index=12))
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    packed = encode_batch(metadata, heads_of([b"x" * 500], None), [b"x" * 500], pb.ZSTD)
    rows = Rows((VALUE,))
    for entry_id, section in enumerate((noted + BATCH, SINGLE, noted + packed)):
        rows.add_entry(TOPIC, -1, 1, entry_id, section)
    assert [row[VALUE] for row in rows.take().to_pylist()] == [b"a", b"b", b"c", b"d", b"x" * 500]
