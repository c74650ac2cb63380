"""The entries of a producer: batches, keys, partitions, limits."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from heliograph.base import errors
from heliograph.client.aio.producer import producer as producer_module
from heliograph.client.aio.producer.commands import PlainFrames, key_field_of
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_single, full_head, keyed_head, plain_head
from heliograph.protocol.frame import PulsarFrameDecoder
from heliograph.protocol.hashing import java_string_hash
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.world import TOPIC, client_of, stored


async def test_a_single_send_is_one_entry_without_a_batch() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
        place = await producer.send("hello", key="k", properties={"a": "b"}, event_time_ms=5)
        assert (place.entry_id, place.batch_index, place.topic) == (0, -1, TOPIC)
        metadata, payload = entries.split(broker.store.topics[TOPIC].entries[0])
        assert bytes(payload) == b"hello"
        assert not entries.is_batch(metadata)
        assert (metadata.partition_key, metadata.event_time, metadata.producer_name) == ("k", 5, "fake-1")


@pytest.mark.parametrize("schema_version", [b"", bytes(8)])
@pytest.mark.parametrize(("name", "key"), [("", None), ("standalone-1-7", "Ü"), ("Ü" * 200, "k" * 127), ("n", "")])
@pytest.mark.parametrize(("producer_id", "sequence_id"), [(1, 0), (127, 127), (128, 128), ((1 << 64) - 1, 1 << 62)])
@pytest.mark.parametrize("payload", [b"", b"x", bytes(127), bytes(128), bytes(5 << 20)], ids=len)
def test_a_frame_put_together_from_bytes_is_the_one_of_protobuf(
    schema_version: bytes, name: str, key: str | None, producer_id: int, sequence_id: int, payload: bytes
) -> None:
    head = plain_head(len(payload)) if key is None else keyed_head(key, len(payload))
    key_field = key_field_of(head, len(payload))
    assert key_field is not None
    frames = PlainFrames(producer_id, name, schema_version)
    frame = frames.frame(sequence_id, 1_700_000_000_123, payload, key_field)
    ((command, section),) = PulsarFrameDecoder().feed(frame)
    send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=1)
    assert command == pb.BaseCommand(type=T.SEND, send=send)
    metadata = pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1_700_000_000_123)
    if schema_version:
        metadata.schema_version = schema_version
    expected = encode_single(metadata, head, payload)
    assert section is not None
    entries.verify(section)
    assert len(section) == len(expected)
    assert entries.metadata_of(section) == entries.metadata_of(expected)
    assert entries.split(section)[1] == payload


@pytest.mark.parametrize(
    "head",
    [
        keyed_head("k" * 128, 5),
        full_head(5, b"key", None, None),
        full_head(5, None, {"a": "b"}, None),
        full_head(5, "k", {"a": "b"}, None),
        full_head(5, "k", None, 7),
        full_head(5, None, None, 24),
        full_head(5, "k", None, None, b"order"),
        full_head(0, "k", None, None, None, True),
    ],
)
def test_a_header_with_more_than_a_short_key_is_left_to_protobuf(head: bytes) -> None:
    assert key_field_of(head, pb.SingleMessageMetadata.FromString(head[4:]).payload_size) is None


async def test_only_a_frame_behind_others_waits_for_the_end_of_the_turn() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
        (part,) = producer._parts
        assert part._connection is not None
        outbox = part._connection._outbox
        assert outbox is not None
        first = await producer.enqueue(b"0")
        part.flush_batch()
        assert not outbox._parts  # written
        second = await producer.enqueue(b"1")
        part.flush_batch()
        assert len(outbox._parts) == 1
        await asyncio.gather(first, second)
        assert stored(broker.store) == [b"0", b"1"]


@pytest.mark.parametrize("options", [{"batch_messages": 1}, {}])
async def test_a_plain_message_is_sent_without_a_batch(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[int] = []
    make = PlainFrames.frame

    def counted(self: PlainFrames, sequence_id: int, publish_time_ms: int, payload: bytes, key_field: bytes) -> bytes:
        frames.append(sequence_id)
        return make(self, sequence_id, publish_time_ms, payload, key_field)

    monkeypatch.setattr(PlainFrames, "frame", counted)
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t", **options) as it:
        for value in (b"0", b"1"):
            await it.send(value)
        await it.send(b"2", key="k")
        await it.send(b"3", properties={"a": "b"})
        await it.send(b"4", deliver_after=1)
        await it.send(b"5")
        assert stored(broker.store) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        found = [entries.metadata_of(one) for one in broker.store.topics[TOPIC].entries]
        assert [(one.sequence_id, one.partition_key, len(one.properties)) for one in found] == [
            (0, "", 0), (1, "", 0), (2, "k", 0), (3, "", 1), (4, "", 0), (5, "", 0),
        ]  # fmt: skip
        assert [one.deliver_at_time > 0 for one in found] == [False] * 4 + [True, False]
        assert frames == [0, 1, 2, 5]


async def test_sends_of_one_turn_share_an_entry_in_order() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
        await producer.open()
        ids = await asyncio.gather(*(producer.send(b"%d" % index) for index in range(100)))
        assert [(place.entry_id, place.batch_index, place.batch_size) for place in ids] == [
            (0, index, 100) for index in range(100)
        ]
        assert stored(broker.store) == [b"%d" % index for index in range(100)]


async def test_send_many_takes_keys_of_bytes_ordering_keys_and_null_values() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
        await producer.send_many([b"x", None], keys=[b"\xff", "k"], ordering_keys=[b"o", None])
        await producer.send_many([None], keys=[b"\xff"], ordering_keys=[b"o"])
        batch, single = broker.store.topics[TOPIC].entries
        metadata, payload = entries.split(batch)
        (first, value), (second, nothing) = entries.iterate_batch(metadata, bytes(payload))
        assert (first.partition_key, first.partition_key_b64_encoded, first.ordering_key) == ("/w==", True, b"o")
        assert (second.partition_key, second.partition_key_b64_encoded) == ("k", False)
        assert (value, first.null_value, nothing, second.null_value) == (b"x", False, b"", True)
        metadata, payload = entries.split(single)
        assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("/w==", True)
        assert (metadata.ordering_key, metadata.null_value, bytes(payload)) == (b"o", True, b"")
        with pytest.raises(errors.BadRequestError, match="ordering key"):
            await producer.send_many([b"x"], ordering_keys=["text"])  # type: ignore[list-item]


async def test_send_many_cuts_by_messages_and_by_bytes() -> None:
    async with (
        FakeBroker() as broker,
        await client_of(broker) as client,
        client.producer("t", batch_messages=10, batch_bytes=1000) as producer,
    ):
        values = [bytes(index % 300) for index in range(500)]
        ids = await producer.send_many(values)
        assert stored(broker.store) == values
        assert ids == sorted(set(ids))
        for section in broker.store.topics[TOPIC].entries:
            metadata = entries.metadata_of(section)
            assert entries.message_count(metadata) <= 10
            assert metadata.uncompressed_size <= 1000
        assert await producer.send_many([]) == []


async def test_order_holds_between_send_and_send_many() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
        first = await producer.enqueue(b"1")
        await producer.send_many([b"2", b"3"])
        await producer.send(b"4")
        assert first.done()
        assert stored(broker.store) == [b"1", b"2", b"3", b"4"]


async def test_a_message_above_the_limit_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "LARGE_MESSAGE_BYTES_MAX", 1000)
    async with FakeBroker() as broker:
        broker.max_message_bytes = 1000
        async with await client_of(broker) as client, client.producer("t") as producer:
            for attempt in (producer.send(bytes(1001)), producer.send_many([b"fine", bytes(1001)])):
                with pytest.raises(errors.MessageTooLargeError) as caught:
                    await attempt
                assert (caught.value.field, caught.value.limit) == ("value", "1000 bytes")
            for attempt in (
                producer.send(b"", properties={"x": "y" * 8000}),
                producer.send_many([b""], keys=["k" * 8000]),
            ):
                with pytest.raises(errors.MessageTooLargeError) as caught:
                    await attempt
                assert caught.value.field == "properties"
            assert not broker.of_type(T.SEND)
            await producer.send(bytes(1000))
            await producer.send_many([bytes(600)] * 5)  # never together in an entry above the limit
            assert len(broker.store.topics[TOPIC].entries) == 6


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_a_large_message_is_sent_in_chunks_in_its_turn_and_joined(codec: str) -> None:
    async with FakeBroker() as broker:
        broker.max_message_bytes = 1000
        async with (
            await client_of(broker) as client,
            client.producer("t", compression=codec, batch_bytes=1000) as producer,
            client.reader("t", start="earliest") as reader,
        ):
            large = random.Random(1).randbytes(3500)
            values = [b"a", large, b"b" * 3500, b"c", large[:1001]]
            waiters = [
                await producer.enqueue(value, key="k", properties={"n": str(number)}, event_time_ms=7)
                for number, value in enumerate(values)
            ]
            ids = [await waiter for waiter in waiters]
            ids += await producer.send_many(values, keys=["k"] * 5)
            assert ids == sorted(set(ids))
            found: list[Any] = []
            while len(found) < 10:
                found += await reader.receive_many(10, timeout=60)
            assert [message.data for message in found] == values * 2
            assert [message.message_id for message in found] == ids
            assert {message.key for message in found} == {"k"}
            assert [message.properties for message in found[:5]] == [{"n": str(number)} for number in range(5)]
            metadata = [entries.split(entry)[0] for entry in broker.store.topics[TOPIC].entries]
            chunks = [each for each in metadata if each.num_chunks_from_msg > 1]
            of_first = [each.chunk_id for each in chunks if each.uuid == chunks[0].uuid]
            assert of_first == [0, 1, 2, 3]
            assert len({each.uuid for each in chunks}) == (6 if codec == "none" else 4)  # what compresses is one entry
            assert all(each.total_chunk_msg_size == 3500 for each in chunks if each.uuid == chunks[0].uuid)
            numbers = [each.sequence_id for each in metadata]
            assert numbers == sorted(numbers)
            assert producer.pending_messages == 0


async def test_keys_choose_partitions_as_java_does_and_keep_their_order() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.store.partitions[TOPIC] = 4
        assert await client.partitions("t") == 4
        async with client.producer("t") as producer:
            keys = [f"N{index % 37}" for index in range(400)]
            values = [f"{key}:{index}".encode() for index, key in enumerate(keys)]
            ids = await producer.send_many(values, keys=keys)
            single = await producer.send(b"N3:single", key="N3")
            assert [place.partition for place in ids] == [java_string_hash(key) % 4 for key in keys]
            assert single.partition == java_string_hash("N3") % 4
            for index in range(4):
                own = [value for value, place in zip(values, ids, strict=True) if place.partition == index]
                assert stored(broker.store, f"{TOPIC}-partition-{index}")[: len(own)] == own


async def test_batches_without_keys_go_round_robin() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.store.partitions[TOPIC] = 3
        async with client.producer("t") as producer:
            used = [(await producer.send_many([b"a", b"b"]))[0].partition for _ in range(6)]
            assert sorted(used) == [0, 0, 1, 1, 2, 2]


async def test_batches_by_key_hold_one_key_each() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        async with client.producer("t", batch_by_key=True) as producer:
            await producer.send_many([b"%d" % index for index in range(6)], keys=["a", "b", "a", "b", "c", "c"])
            await asyncio.gather(*(producer.send(b"x", key=key) for key in "aabb"))
        for section in broker.store.topics[TOPIC].entries:
            metadata, payload = entries.split(section)
            assert metadata.HasField("partition_key")
            plain = entries.plain_payload(metadata, payload)
            singles = [single for single, _ in entries.iterate_batch(metadata, plain)] or [
                pb.SingleMessageMetadata(partition_key=metadata.partition_key)
            ]
            assert {single.partition_key for single in singles} == {metadata.partition_key}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda it: it.send(5), "value"),
        (lambda it: it.send(b"", key=5), "key"),
        (lambda it: it.send(b"", properties={"a": 1}), "properties"),
        (lambda it: it.send(b"", event_time_ms=-1), "event_time_ms"),
        (lambda it: it.send_many([b"a"], keys=[]), "keys"),
        (lambda it: it.send_many([b"a"], keys=[3]), "key"),
    ],
)
async def test_bad_arguments_name_their_field(call: Any, field: str) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
        with pytest.raises(errors.BadRequestError) as caught:
            await call(producer)
        assert caught.value.field == field
        assert not broker.of_type(T.SEND)
        assert isinstance(producer, AsyncProducer)
        assert producer.pending_messages == 0


async def test_delayed_messages_of_send_many_are_entries_of_their_own() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
        times = [None, 7, None, None, 8, 9]
        await producer.send_many([b"%d" % index for index in range(6)], deliver_times_ms=times)
        assert stored(broker.store) == [b"%d" % index for index in range(6)]
        found = [entries.metadata_of(one) for one in broker.store.topics[TOPIC].entries]
        assert [(one.num_messages_in_batch, one.deliver_at_time) for one in found] == [
            (1, 0), (1, 7), (2, 0), (1, 8), (1, 9),
        ]  # fmt: skip
        with pytest.raises(errors.BadRequestError, match="deliver_at"):
            await producer.send_many([b"x"], deliver_times_ms=[-1])
