"""Chunked messages that are never completed: they expire, and hold neither a subscription nor a view."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

import heliograph
from heliograph.base.errors import InvalidConfigError
from heliograph.client.aio.consumer import chunks
from heliograph.client.aio.consumer.chunks import ChunkAssembler
from heliograph.client.aio.consumer.partition import PartitionConsumer
from heliograph.client.aio.producer.outgoing import PendingEntry
from heliograph.client.options import ConsumerOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_single, keyed_head, plain_head
from heliograph.protocol.frame import MESSAGE_BYTES_MAX
from heliograph.protocol.message_id import MessageId
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.local.test_redelivery import FakeClock
from tests.unit.client.topics import publish, subscription_of
from tests.unit.client.world import TOPIC, client_of
from tests.waits import until

SECONDS = 60
CHUNKS = 3
Position = tuple[int, int]


class Assembly:
    """An assembler with a clock that a test moves, and what it asked for."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.again: list[Position] = []
        self.given_up: list[list[Position]] = []
        self.can_receive = True
        self.entries = 0
        self.made = ChunkAssembler(
            ConsumerOptions(("t",), "s", **{"type": "shared", **options}),
            self.clock,  # type: ignore[arg-type]
            self.again.extend,
            self._expired,
            lambda: self.can_receive,
        )

    def _expired(self, entries: Iterable[Position]) -> None:
        self.given_up.append(sorted(entries))

    def add(self, uuid: str, chunk: int, at: int | None = None, published_ms: int = 0) -> Any:
        """Add a chunk as the next entry, or again as an entry that came before. Return the delivery if complete."""
        if at is None:
            at = self.entries = self.entries + 1
        metadata = SimpleNamespace(uuid=uuid, chunk_id=chunk, num_chunks_from_msg=CHUNKS)
        payload = f"{uuid}{chunk}".encode()
        delivery = SimpleNamespace(
            metadata=metadata, position=(1, at), payload=payload, size=len(payload), published_ms=published_ms, seeks=0
        )
        self.made.received(delivery)  # type: ignore[arg-type]
        return delivery if self.made.complete(delivery) else None  # type: ignore[arg-type]


def test_an_orphan_expires_some_time_after_its_last_chunk() -> None:
    assembly = Assembly(chunked_expiry_ms=10_000)
    assembly.add("a", 0)
    assembly.clock.move(9)
    assembly.add("a", 1)
    assembly.add("a", 1)  # once more: its producer sent everything again, and died then
    assembly.clock.move(21.4)
    assert assembly.given_up == []
    assembly.clock.move(21.5)
    assert assembly.given_up == [[(1, 1), (1, 2), (1, 3)]]
    assert not assembly.made.is_waiting


def test_a_chunk_without_those_before_it_expires_too() -> None:
    assembly = Assembly(chunked_expiry_ms=10_000)
    assembly.add("a", 2)
    assembly.clock.move(12.5)
    assert assembly.given_up == [[(1, 1)]]


def test_nothing_expires_while_the_broker_may_send_nothing() -> None:
    """Its next chunk may be stored, and waits for permits or for a connection."""
    assembly = Assembly(chunked_expiry_ms=10_000)
    assembly.add("a", 0)
    assembly.can_receive = False
    assembly.clock.move(35)
    assembly.can_receive = True
    assembly.made.renew()
    assembly.clock.move(44)
    assert assembly.given_up == []
    assembly.add("a", 1)
    assert assembly.add("a", 2).payload == b"a0a1a2"
    assembly.clock.move(100)
    assert assembly.given_up == []


def test_a_chunk_that_the_broker_could_send_only_at_the_end_is_still_waited_for() -> None:
    assembly = Assembly(chunked_expiry_ms=10_000)
    assembly.can_receive = False
    assembly.add("a", 0)
    assembly.clock.move(9.999)
    assembly.can_receive = True  # a permit was given, or an acknowledgement ended a limit
    assembly.clock.move(10.001)
    assembly.add("a", 1)
    assert assembly.add("a", 2).payload == b"a0a1a2"
    assert assembly.given_up == []


def test_a_consumer_that_is_behind_waits_for_chunks_that_are_stored_behind_other_messages() -> None:
    """It receives all the time, but slowly."""
    assembly = Assembly(chunked_expiry_ms=10_000, chunked_messages_max=100)
    assembly.add("a", 0)
    for second in range(1, 40):
        assembly.clock.move(second)
        assembly.add(f"other{second}", 2, published_ms=second * 100)
    assert assembly.given_up == []
    assembly.add("other", 2, published_ms=10_000)  # from here on "a" has no chunk in time
    for second in range(40, 60):
        assembly.clock.move(second)
        assembly.add("other", 2, at=1)
        assembly.add("other", 2, published_ms=second * 1000)
    assert [(1, 1)] in assembly.given_up


def test_zero_keeps_incomplete_messages_for_ever() -> None:
    assembly = Assembly(chunked_expiry_ms=0)
    assembly.add("a", 0)
    assembly.clock.move(1_000_000)
    assert assembly.made.is_waiting
    with pytest.raises(InvalidConfigError, match="chunked_expiry_ms"):
        Assembly(chunked_expiry_ms=-1)
    with pytest.raises(InvalidConfigError, match="chunked_messages_max"):
        Assembly(chunked_messages_max=0)


def test_what_is_dropped_for_a_further_message_comes_again_and_is_completed() -> None:
    assembly = Assembly(chunked_messages_max=2)
    for uuid in "abc":
        assembly.add(uuid, 0)
    assert assembly.again == [(1, 1)]
    assembly.add("a", 1)  # was on its way
    assert assembly.again == [(1, 1)], "it does not help before the first one"
    for uuid in "bc":
        assembly.add(uuid, 1)
        assert assembly.add(uuid, 2).earlier_chunks
    assembly.add("a", 0, at=1)
    assert assembly.again == [(1, 1), (1, 4)]
    assembly.add("a", 1, at=4)
    whole = assembly.add("a", 2)
    assert (whole.payload, sorted(whole.earlier_chunks)) == (b"a0a1a2", [(1, 1), (1, 4)])


def test_the_message_that_began_last_is_dropped_last() -> None:
    assembly = Assembly(chunked_messages_max=1)
    assembly.add("a", 0)
    assembly.made.clear()  # a reconnect
    assembly.add("b", 0)
    assembly.add("a", 0, at=1)
    assert assembly.again == [(1, 2)]
    assembly.add("a", 1)
    assert assembly.add("a", 2).payload == b"a0a1a2"


def test_messages_that_push_each_other_out_expire_all_the_same() -> None:
    assembly = Assembly(chunked_messages_max=1, chunked_expiry_ms=10_000)
    first = {uuid: number for number, uuid in enumerate("ab", 1)}
    for uuid in first:
        assembly.add(uuid, 0)
    for second in range(1, 10):
        assembly.clock.move(second)
        for uuid, at in first.items():
            assembly.add(uuid, 0, at)
    assembly.clock.move(12.5)
    assert assembly.given_up == [[(1, 1)], [(1, 2)]]


def test_a_chunk_that_came_before_its_predecessor_is_requested_again() -> None:
    assembly = Assembly()
    assembly.add("a", 1)
    assembly.add("a", 0)
    assert assembly.again == [(1, 1)]
    assembly.add("a", 1, at=1)
    assert assembly.add("a", 2).payload == b"a0a1a2"


def test_an_ordered_subscription_goes_back_only_for_what_was_dropped_for_others() -> None:
    assembly = Assembly(type="exclusive", chunked_messages_max=1)
    assembly.add("a", 1)
    assembly.add("a", 0)
    assert assembly.again == [], "the first one is of an older producer"
    assembly.add("b", 0)
    assert assembly.again == [(1, 2)]


def test_the_number_of_remembered_messages_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "REMEMBERED_MAX", 3)
    monkeypatch.setattr(chunks, "ENTRIES_MAX", 2)
    assembly = Assembly()
    for uuid in "abcd":
        assembly.add(uuid, 1)
    assert assembly.again == [(1, 1)]
    assembly.add("d", 1)
    assembly.add("d", 1)
    assert assembly.again == [(1, 1), (1, 4), (1, 5)]


def store_orphan(broker: FakeBroker, *, key: str | None = None, uuid: str = "dead-7") -> None:
    """Store the first of two chunks, whose producer has died."""
    metadata = pb.MessageMetadata(producer_name="dead", sequence_id=7, publish_time=1, uuid=uuid)
    metadata.num_chunks_from_msg, metadata.chunk_id, metadata.total_chunk_msg_size = 2, 0, 8
    head = plain_head(4) if key is None else keyed_head(key, 4)
    broker.store.topics[TOPIC].entries.append(encode_single(metadata, head, b"half"))


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_an_orphan_does_not_hold_the_subscription_back(kind: str) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["before"])
        store_orphan(broker)
        await publish(client, ["behind"])
        consumer = await client.consumer("t", "s", type=kind, initial_position="earliest", chunked_expiry_ms=50)  # type: ignore[arg-type]
        for value in (b"before", b"behind"):
            message = await consumer.receive(SECONDS)
            assert message.value == value
            await consumer.ack(message)
        await until(lambda: len(subscription_of(broker).acked) == 3)


async def test_a_view_does_not_wait_for_the_rest_of_an_orphan() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
        await producer.send("v", key="k")
        store_orphan(broker, key="k")
        async with client.table_view("t") as view:
            assert view["k"] == b"v"
            await view.refresh(SECONDS)
            await producer.send("w", key="k")
            await view.refresh(SECONDS)
            assert view["k"] == b"w"


def part_of(consumer: heliograph.AsyncConsumer) -> PartitionConsumer:
    (part,) = consumer._parts.values()
    return part


async def test_a_consumer_that_is_no_longer_active_forgets_its_chunks_and_acknowledges_none() -> None:
    """The active consumer gets them all, and may hold their message by now."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        store_orphan(broker)
        consumer = await client.consumer("t", "s", type="failover", initial_position="earliest")
        await until(lambda: part_of(consumer)._chunks.is_waiting)
        for is_active in (True, False):
            change = pb.CommandActiveConsumerChange(consumer_id=part_of(consumer)._id, is_active=is_active)
            broker.connections[-1].answer(active_consumer_change=change)
            await consumer.last_message_ids()  # its answer comes after the change
            assert part_of(consumer)._chunks.is_waiting == is_active
        assert not broker.of_type(T.ACK)


async def test_chunks_that_are_dropped_for_room_were_not_refused() -> None:
    """A count of refusals would make dead letters of messages that no caller had."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["refused"])
        for uuid in "ab":
            store_orphan(broker, uuid=uuid)
        consumer = await client.consumer(
            "t", "s", type="shared", initial_position="earliest", chunked_messages_max=1, nack_delay_ms=20
        )
        await consumer.nack(await consumer.receive(SECONDS))
        requested: dict[bool, set[int]] = {True: set(), False: set()}
        while len(requested[True]) < 2 or not requested[False]:
            for command in broker.of_type(T.REDELIVER_UNACK):
                again = command.redeliver_unack
                requested[again.is_unhandled] |= {place.entry_id for place in again.message_ids}
            await asyncio.sleep(0.001)
            assert not requested[False] - {0}, "no caller had the chunks"
        assert requested == {True: {1, 2}, False: {0}}


@pytest.mark.parametrize("how", ["seek", "reconnect"])
async def test_a_reader_that_begins_again_has_messages_before_an_orphan_at_the_end(how: str) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["before"])
        store_orphan(broker)
        async with client.reader("t", "earliest") as reader:
            await reader.open()
            await until(lambda: part_of(reader).last_chunk)
            epoch = part_of(reader).epoch
            broker.silent.add(T.FLOW)  # nothing is delivered again
            if how == "seek":
                await reader.seek("earliest")
            else:
                broker.drop_connections()
            await until(lambda: part_of(reader).epoch > epoch)
            assert await reader.has_message_available()


async def test_nothing_expires_while_the_broker_waits_for_acknowledgements() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.is_blocked = True
        store_orphan(broker)
        options: dict[str, Any] = {"type": "shared", "initial_position": "earliest", "chunked_expiry_ms": 20}
        async with await client.consumer("t", "s", **options):
            await until(lambda: len(broker.of_type(T.CONSUMER_STATS)) > 3)
            assert not broker.of_type(T.ACK)
            broker.is_blocked = False
            await until(lambda: broker.of_type(T.ACK))


async def test_what_is_not_answered_is_no_reason_to_give_up() -> None:
    async with FakeBroker() as broker, await client_of(broker, operation_timeout_ms=200) as client:
        broker.silent.add(T.CONSUMER_STATS)
        store_orphan(broker)
        options: dict[str, Any] = {"type": "shared", "initial_position": "earliest", "chunked_expiry_ms": 20}
        async with await client.consumer("t", "s", **options):
            await until(lambda: len(broker.of_type(T.CONSUMER_STATS)) > 1)
            assert not broker.of_type(T.ACK)


async def test_a_partition_that_is_asked_no_more_has_its_full_time_again() -> None:
    """It may have been asked for a moment only, because others share the permits."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        store_orphan(broker)
        async with await client.consumer("t", "s", type="shared", initial_position="earliest") as consumer:
            await until(lambda: part_of(consumer)._chunks.is_waiting)
            (partial,) = part_of(consumer)._chunks._partial.values()
            partial.has_grace = True
            part_of(consumer).ask(1)
            assert partial.has_grace
            part_of(consumer).ask(0)
            assert not partial.has_grace


def test_a_message_in_chunks_is_read_again_by_its_id(client: heliograph.Client) -> None:
    """Its id is that of its last chunk, from which on it is never complete."""
    value = b"x" * (MESSAGE_BYTES_MAX + 1)
    with client.consumer("by-id", "s", initial_position="earliest") as consumer:
        with client.producer("by-id") as producer:
            sent = [producer.send("before"), producer.send(value), producer.send("after")][1]
        received = [consumer.receive(timeout=SECONDS) for _ in range(3)][1].message_id
        assert str(sent) == str(received)
        for id_ in (sent, MessageId.parse(str(sent)), MessageId.from_bytes(sent.to_bytes())):
            assert (id_, id_.begin) == (received, received.begin)
            assert id_.begin < id_
            with client.reader("by-id", id_, inclusive=True, receiver_queue=1) as reader:
                assert reader.has_message_available()
                assert reader.receive(timeout=SECONDS).data == value
        for inclusive, expected in ((True, value), (False, b"after")):
            consumer.seek(received, inclusive=inclusive)
            assert consumer.receive(timeout=SECONDS).data == expected


async def test_a_message_in_chunks_that_was_stored_before_has_an_id_that_can_be_read() -> None:
    """Its first receipt came on the connection that was lost; deduplication answers the chunks that come again."""
    waiter: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
    PendingEntry(0, 0, 1, 1, b"", [waiter], 0, first_chunk=(5, 3)).confirm(-1, -1, -1, TOPIC)
    assert MessageId.parse(str(await waiter)) == MessageId(-1, -1)
