"""Batches that are divided over the consumers of a Shared subscription: what each is sent, and what it acknowledges."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from typing_extensions import override

from heliograph.actors.broker.dispatch.dispatcher import CRASH_MESSAGES, CRASH_PART, ConsumerState, CrashBudget
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.divided import CUT_BYTES_MIN, DividedBatch
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, heads_of
from tests.unit.broker.topic_world import Ear, topic_on
from tests.unit.broker.world import Outcomes, World, turns

MESSAGES = 60


def batch_of(messages: int, size: int = 4, codec_: pb.CompressionType = pb.NONE) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    values = [b"%04d" % n + os.urandom(size - 4) for n in range(messages)]
    return encode_batch(metadata, heads_of(values, None), values, codec_)


def read(section: bytes) -> TopicEntry:
    return TopicEntry.read(section, check=True)


class PartEar(Ear):
    """A channel that notes which messages it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[Position, int]] = []
        self.counts: list[int] = []
        self.crashes: list[int] = []
        self.lone_crashes: list[int] = []

    @override
    def push(self, consumer: SubscriptionConsumer, position: Position, entry: TopicEntry, *rest: Any) -> None:
        count, bits, _, crashes, lone = rest
        self.lone_crashes.append(lone)
        self.counts.append(count)
        self.crashes.append(crashes)
        self.parts.append((position, (1 << entry.messages) - 1 if bits is None else bits))


_joined: WeakKeyDictionary[Subscription, int] = WeakKeyDictionary()


def join(
    subscription: Subscription,
    permits: int,
    *,
    takes_parts: bool = True,
    kind: SubscriptionType = SubscriptionType.SHARED,
) -> tuple[SubscriptionConsumer, PartEar]:
    ear = PartEar()
    consumer = SubscriptionConsumer(1, "", 0, -1, ear)
    number = _joined[subscription] = _joined.get(subscription, 0) + 1  # the same keys for it, whatever tests ran before
    consumer.state = ConsumerState(number, f"consumer-{number}", 0)
    consumer.state.takes_parts = takes_parts
    subscription.add_consumer(consumer, kind)
    consumer.state.permits = permits
    return consumer, ear


async def publish_section(subscription: Subscription, ledger: Any, section: bytes) -> None:
    Outcomes().publish_bytes(ledger, section)
    await turns(lambda: not ledger.pending)
    await settled(subscription)


async def settled(subscription: Subscription) -> None:
    """Wait until everything is delivered that can be."""
    subscription.pump()
    await turns(lambda: subscription.dispatcher.next_wanted(subscription.chain.end) is None)


async def test_each_gets_what_it_asks_for_and_acknowledges_only_that(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    (a, ear_a), (b, ear_b) = join(jobs, 2), join(jobs, 3)
    await publish_section(jobs, topic.ledger, batch_of(8))
    position = jobs.chain.position_at(0)
    assert ear_a.parts == [(position, 0b11)]
    assert ear_b.parts == [(position, 0b11100)]
    assert (a.state.permits, b.state.permits) == (0, 0)
    jobs.acknowledge([(position, None)], a)
    assert jobs.cursor.unacknowledged_bits(0) == 0b11111100, "the whole entry means its part"
    assert (a.state.pending_messages, b.state.pending_messages) == (0, 3)
    jobs.remove_consumer(b)
    jobs.flow(a, 2)
    await settled(jobs)
    assert ear_a.parts[1:] == [(position, 0b11111100)], "a lone consumer gets all that is left"
    jobs.acknowledge([(position, 0b11)], a)
    assert jobs.backlog == 0


@pytest.mark.parametrize("follows_sets", [True, False])
async def test_a_client_that_follows_sets_acknowledges_nothing_that_others_hold(
    topic: BrokerTopic, follows_sets: bool
) -> None:
    """It gets what is left of an entry, and acknowledges by the set of that: what is not in it counts as acknowledged.
    For other clients the same acknowledgement means what it says."""
    jobs = await topic.subscribe("jobs", start=0)
    (a, _), (b, _) = join(jobs, 2), join(jobs, 3)
    await publish_section(jobs, topic.ledger, batch_of(8))
    position = jobs.chain.position_at(0)
    java, ear = join(jobs, 8, takes_parts=False)
    java.state.follows_sets = follows_sets
    await settled(jobs)
    assert ear.parts == [(position, 0b11100000)]
    jobs.acknowledge([(position, 0b11000000)], java)
    assert jobs.cursor.unacknowledged_bits(0) == (0b11011111 if follows_sets else 0b11000000)
    jobs.acknowledge([(position, 0b10000000), (position, None)], java)
    for one in (a, b) if follows_sets else ():
        jobs.acknowledge([(position, None)], one)
    assert jobs.backlog == 0


async def test_who_acknowledges_all_messages_of_an_entry_need_not_hold_them(topic: BrokerTopic) -> None:
    """They came by another broker, and this one divided the entry among others."""
    jobs = await topic.subscribe("jobs", start=0)
    join(jobs, 2)
    b, _ = join(jobs, 3)
    await publish_section(jobs, topic.ledger, batch_of(8))
    late, _ = join(jobs, 0)
    position = jobs.chain.position_at(0)
    jobs.acknowledge([(position, None)], late)
    assert jobs.cursor.unacknowledged_bits(0) == 255, "it was sent nothing of it"
    jobs.acknowledge([(position, None)], b)
    assert jobs.cursor.unacknowledged_bits(0) == 0b11100011
    jobs.acknowledge([(position, 0)], late)
    assert jobs.backlog == 0


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_late_acknowledgement_of_a_part_takes_nothing_that_waits(
    topic: BrokerTopic, others: int, kind: SubscriptionType
) -> None:
    """Nothing of the entry is pending when it comes: its consumer gave its part back, or was gone with all others."""
    jobs = await topic.subscribe("jobs", start=0)
    joined = [join(jobs, 0, kind=kind)[0] for _ in range(1 + others)]
    await publish_section(jobs, topic.ledger, batch_of(8))
    position = jobs.chain.position_at(0)
    for one in joined:
        if not any(each.state.pending_messages for each in joined):
            jobs.flow(one, 1)
            await settled(jobs)
    (a,) = [one for one in joined if one.state.pending_messages == 1]
    for one in joined:
        jobs.flow(one, 0, takes_back=True)
    if others:
        jobs.redeliver(a, [(position, 0)])
        await settled(jobs)
    else:
        jobs.remove_consumer(a)
    last, ear = join(jobs, 0, kind=kind)
    jobs.acknowledge([(position, None)], a if others else last)
    assert jobs.backlog == 1, "nobody was sent the others"
    for one in joined:
        jobs.remove_consumer(one)
    jobs.flow(last, 20)
    await settled(jobs)
    assert sum(bits for _, bits in ear.parts) == 255
    jobs.acknowledge([(position, None)], a)
    assert jobs.backlog == 1, "another consumer has it all"
    jobs.acknowledge([(position, None)], last)
    assert jobs.backlog == 0
    assert not jobs.dispatcher._pending.divided  # type: ignore[attr-defined]


async def test_nothing_is_divided_while_a_consumer_takes_no_parts(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    (_, ear_a), (stock, ear_b) = join(jobs, 1), join(jobs, 1, takes_parts=False)
    await publish_section(jobs, topic.ledger, batch_of(8))
    assert ear_a.parts == [(jobs.chain.position_at(0), 255)]
    jobs.remove_consumer(stock)
    join(jobs, 1)
    await publish_section(jobs, topic.ledger, batch_of(8))
    assert ear_b.parts == []


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE])
async def test_a_client_that_asks_again_for_what_it_skips_gets_no_permits_by_that(
    topic: BrokerTopic, kind: SubscriptionType
) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, _ = join(jobs, 10, kind=kind)
    await publish_section(jobs, topic.ledger, batch_of(8))
    jobs.acknowledge([(jobs.chain.position_at(0), 0b1)], a)
    jobs.remove_consumer(a)
    stock, ear = join(jobs, 10, takes_parts=False, kind=kind)
    stock.state.returns_skipped = True
    await settled(jobs)
    assert [bits for _, bits in ear.parts] == [1]
    assert stock.state.permits == 2, "it asks for the seven others when it has skipped them"


async def test_an_encrypted_batch_stays_whole(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    (_, ear), _ = join(jobs, 1), join(jobs, 1)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=8)
    metadata.encryption_keys.add(key="k", value=b"v")
    await publish_section(jobs, topic.ledger, codec.encode_entry(metadata, b"secret"))
    assert ear.parts == [(jobs.chain.position_at(0), 255)]


async def test_an_acknowledgement_longer_than_its_batch_does_not_hold_the_cursor(topic: BrokerTopic) -> None:
    """Messages that the batch does not have are not waited for."""
    jobs = await topic.subscribe("jobs", start=0)
    a, _ = join(jobs, 10)
    await publish_section(jobs, topic.ledger, batch_of(8))
    jobs.acknowledge([(jobs.chain.position_at(0), 1 << 70)], a)
    jobs.remove_consumer(a)
    _, ear = join(jobs, 10)
    await settled(jobs)
    assert ear.parts == []
    assert jobs.backlog == 0


@pytest.mark.parametrize("kind", SubscriptionType)
async def test_an_acknowledgement_longer_than_its_batch_is_that_of_the_batch(
    topic: BrokerTopic, kind: SubscriptionType
) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, ear = join(jobs, 10, kind=kind)
    await publish_section(jobs, topic.ledger, batch_of(8))
    await settled(jobs)
    assert ear.parts == [(jobs.chain.position_at(0), 255)]
    jobs.acknowledge([(jobs.chain.position_at(0), 1 << 70 | 0b1)], a)
    assert jobs.cursor.unacknowledged_bits(0) == 1
    jobs.acknowledge([(jobs.chain.position_at(0), 1 << 70)], a)
    assert jobs.backlog == 0


async def test_messages_in_excess_of_a_batch_neither_stop_delivery_nor_hold_the_cursor(topic: BrokerTopic) -> None:
    """While some messages are pending, others are not, and after the part that is held was given back."""
    jobs = await topic.subscribe("jobs", start=0)
    (a, _), (b, ear) = join(jobs, 1), join(jobs, 0)
    await publish_section(jobs, topic.ledger, batch_of(3))
    position = jobs.chain.position_at(0)
    jobs.acknowledge([(position, 0b1101)], a)
    jobs.redeliver(a, [(position, 1 << 3)])
    jobs.flow(b, 5)
    await settled(jobs)
    assert ear.parts == [(position, 0b100)]
    jobs.acknowledge([(position, 1 << 3)], b)
    await settled(jobs)
    assert jobs.backlog == 0


async def test_what_was_acknowledged_in_excess_before_delivery_is_forgotten_with_it(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, ear = join(jobs, 0)
    await publish_section(jobs, topic.ledger, batch_of(3))
    position = jobs.chain.position_at(0)
    jobs.acknowledge([(position, 1 << 70 | 0b11)], a)
    jobs.flow(a, 5)
    await settled(jobs)
    assert ear.parts == [(position, 0b11)]
    jobs.acknowledge([(position, 1 << 70 | 0b10), (position, 1 << 70)], a)
    assert jobs.backlog == 0


async def test_the_last_message_of_a_batch_keeps_its_refusals(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, ear = join(jobs, 100)
    await publish_section(jobs, topic.ledger, batch_of(3))
    position = jobs.chain.position_at(0)
    for _ in range(2):
        jobs.redeliver(a, [(position, 0b10)])
        await settled(jobs)
    jobs.acknowledge([(position, 0b10)], a)
    for _ in range(2):
        jobs.redeliver(a, [(position, 0b10)])
        await settled(jobs)
    assert ear.counts == [0, 1, 2, 3, 4]


async def test_a_chunk_that_claims_to_be_a_batch_goes_to_its_owner_without_permits(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    (_, ear), (b, _) = join(jobs, 1), join(jobs, 0)
    for number in range(2):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=3)
        metadata.uuid, metadata.num_chunks_from_msg, metadata.chunk_id = "u", 2, number
        await publish_section(jobs, topic.ledger, codec.encode_entry(metadata, b"x"))
    jobs.flow(b, 1)
    await settled(jobs)
    assert [bits for _, bits in ear.parts] == [1, 0b110, 0b111]


async def test_chunks_of_a_consumer_of_keys_that_leaves_go_to_another(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, ear_a = join(jobs, 1, kind=SubscriptionType.KEY_SHARED)
    for number in range(2):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key="k")
        metadata.uuid, metadata.num_chunks_from_msg, metadata.chunk_id = "u", 3, number
        await publish_section(jobs, topic.ledger, codec.encode_entry(metadata, b"x"))
    assert len(ear_a.parts) == 1, "the second one waits for a, which has begun the message"
    _, ear_b = join(jobs, 5, kind=SubscriptionType.KEY_SHARED)
    jobs.remove_consumer(a)
    await settled(jobs)
    assert [position.entry_id for position, _ in ear_b.parts] == [0, 1]


async def test_a_refused_message_comes_alone_and_what_it_names_in_excess_is_ignored(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, ear = join(jobs, 100)
    await publish_section(jobs, topic.ledger, batch_of(8))
    position = jobs.chain.position_at(0)
    jobs.redeliver(a, [(position, 0b100 | 1 << 99), (Position(99, 9), 1)])
    assert a.state.pending_messages == 7
    await settled(jobs)
    assert ear.parts[1:] == [(position, 0b100)]
    assert a.state.pending_messages == 8
    jobs.redeliver(a, [(position, 0b1), (position, 0b1000)])
    await settled(jobs)
    assert ear.parts[2:] == [(position, 0b1001)]


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_a_lost_consumer_counts_apart_from_a_refusal_and_over_a_failover(
    topic: BrokerTopic, kind: SubscriptionType, world: World, store: MemoryStore
) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, _ = join(jobs, 10, kind=kind)
    await publish_section(jobs, topic.ledger, batch_of(1))
    jobs.remove_consumer(a, CrashBudget())
    closed, ear = join(jobs, 10, kind=kind)
    await settled(jobs)
    assert (ear.counts, ear.crashes) == ([0], [1])
    jobs.redeliver(closed, [(jobs.chain.position_at(0), 0)])
    await settled(jobs)
    refusals = [0, 1] if kind.is_shared else [0, 0]  # types in order count no refusals, as in Pulsar
    assert (ear.counts, ear.crashes) == (refusals, [1, 1])
    jobs.remove_consumer(closed)
    stored = jobs.persist()
    assert stored is not None
    await stored
    topic = await topic_on(world, store)
    again = await topic.subscribe("jobs", start=0)
    _, ear = join(again, 10, kind=kind)
    await settled(again)
    assert (ear.counts, ear.crashes) == (refusals[1:], [1]), "to close a consumer is no crash"


async def test_what_no_caller_had_goes_back_without_a_count_and_permits_can_be_taken_back(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    (a, _), (b, ear) = join(jobs, 2), join(jobs, 0)
    await publish_section(jobs, topic.ledger, batch_of(8))
    jobs.redeliver(a, [(jobs.chain.position_at(0), 0b10)], is_unhandled=True)
    a.state.permits = 9
    jobs.flow(a, 0, takes_back=True)
    jobs.flow(b, 3)
    await settled(jobs)
    assert a.state.permits == 0
    assert (sum(bits for _, bits in ear.parts), set(ear.counts)) == (0b1110, {0}), "what went back is the oldest"


async def test_only_the_part_that_was_lost_counts_as_lost(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    (a, _), (b, ear) = join(jobs, 2), join(jobs, 3)
    await publish_section(jobs, topic.ledger, batch_of(8))
    position = jobs.chain.position_at(0)
    jobs.acknowledge([(position, 0b11111110)], a)
    jobs.remove_consumer(a, CrashBudget())
    jobs.flow(b, 8)
    await settled(jobs)
    assert ear.parts == [(position, 0b11100), (position, 0b11100000), (position, 0b10)]
    assert ear.crashes == [0, 0, 1]


async def test_what_a_lost_connection_counts_has_a_bound(topic: BrokerTopic) -> None:
    """It holds for all consumers of the connection together, and parts of large batches cost more."""
    jobs = await topic.subscribe("jobs", start=0)
    lost, messages = [join(jobs, 1)[0] for _ in range(4)], 2 * CRASH_MESSAGES
    await publish_section(jobs, topic.ledger, batch_of(messages))
    assert [one.state.pending_messages for one in lost] == [1] * 4
    budget = CrashBudget(2 * (CRASH_PART + 2))
    for one in lost:
        jobs.remove_consumer(one, budget)
    assert jobs.cursor.crashed.of(0).messages.bit_count() == 2, "each of two messages was lost once"  # I24


async def test_a_lone_consumer_that_asks_for_little_gets_a_part(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, ear = join(jobs, 4)
    await publish_section(jobs, topic.ledger, batch_of(100))
    assert [bits.bit_count() for _, bits in ear.parts] == [4]
    jobs.flow(a, 40)
    await settled(jobs)
    assert [bits.bit_count() for _, bits in ear.parts] == [4, 96]


@pytest.mark.parametrize("codec_", [pb.NONE, pb.LZ4, pb.ZSTD])
def test_a_small_part_is_a_small_batch_with_the_same_places(codec_: pb.CompressionType) -> None:
    section = batch_of(MESSAGES, 200, codec_)
    whole = read(section)
    bits = 1 << 7 | 1 << 8 | 1 << 59
    cut = DividedBatch(0, whole).cut(bits, 3)
    assert len(cut.payload) < 3 * 250 + MESSAGES * 10
    metadata, payload = codec.split(cut.payload)
    codec.verify(cut.payload)
    assert cut.messages == metadata.num_messages_in_batch == MESSAGES
    found = list(codec.iterate_batch(metadata, codec.plain_payload(metadata, payload)))
    assert [n for n, (single, _) in enumerate(found) if not single.compacted_out] == [7, 8, 59]
    assert [value[:4] for _, value in found if value] == [b"0007", b"0008", b"0059"]


def test_what_cannot_be_cut_or_is_large_is_sent_as_it_is() -> None:
    large_part, small = read(batch_of(MESSAGES, 200)), read(batch_of(MESSAGES))
    assert DividedBatch(0, large_part).cut((1 << 40) - 1, 40) is large_part
    assert DividedBatch(0, small).cut(1, 1) is small
    lie = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=100)
    lying = read(codec.encode_entry(lie, b"\xff" * 2 * CUT_BYTES_MIN))
    assert DividedBatch(0, lying).cut(1, 1) is lying


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_a_lone_consumer_that_asks_exactly_gets_no_message_that_would_wait_behind_its_caller(
    topic: BrokerTopic, kind: SubscriptionType
) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, ear = join(jobs, 0, kind=kind)
    jobs.flow(a, 1, takes_back=True)
    await publish_section(jobs, topic.ledger, batch_of(3))
    position = jobs.chain.position_at(0)
    assert ear.parts == [(position, 0b1)]
    jobs.flow(a, 1)
    await settled(jobs)
    assert ear.parts[1:] == [(position, 0b110)], "a queue takes the rest"
