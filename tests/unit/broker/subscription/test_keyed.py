"""Batches that are divided over the consumers of a Key_Shared subscription by the keys of their messages (I16)."""

from __future__ import annotations

import os

import pytest

from heliograph.actors.broker.records.message_keys import KEYED_MESSAGES_MAX, UNKNOWN
from heliograph.actors.broker.records.message_keys import read_key_hashes as hashes_of
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, heads_of
from heliograph.protocol.hashing import sticky_key_hash
from tests.unit.broker.subscription.test_divided import PartEar, join, publish_section, settled
from tests.unit.broker.topic_world import topic_on
from tests.unit.broker.world import World, turns

KEYS = [f"key-{n}" for n in range(10)]
KEY_SHARED = SubscriptionType.KEY_SHARED


def keyed(messages: int, codec_: pb.CompressionType = pb.NONE, size: int = 4) -> bytes:
    """Return a batch whose messages have the keys in turn."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    values = [os.urandom(size)] * messages
    return encode_batch(metadata, heads_of(values, [KEYS[n % len(KEYS)] for n in range(messages)]), values, codec_)


def places(parts: list[int]) -> list[int]:
    return [place for bits in parts for place in range(bits.bit_length()) if bits >> place & 1]


def keys_in(ear: PartEar) -> set[int]:
    """Return the numbers of the keys that a consumer got."""
    return {place % len(KEYS) for place in places([bits for _, bits in ear.parts])}


Joined = list[tuple[SubscriptionConsumer, PartEar]]


async def acknowledged(subscription: Subscription, joined: Joined) -> None:
    """Let the consumers acknowledge all that they have, and ask for more, until there is nothing left."""
    for _ in range(100):
        for consumer, ear in joined:
            for position, bits in ear.parts:
                everything = (1 << 1_000) - 1
                subscription.acknowledge([(position, everything & ~bits)], consumer)
            subscription.flow(consumer, 1)
        await settled(subscription)
        if not subscription.backlog:
            return


@pytest.mark.parametrize("codec_", [pb.NONE, pb.LZ4, pb.ZSTD])
async def test_each_message_goes_to_the_consumer_of_its_key(topic: BrokerTopic, codec_: pb.CompressionType) -> None:
    subscription = await topic.subscribe("s", start=0)
    joined = [join(subscription, 1_000, kind=KEY_SHARED) for _ in range(3)]
    for messages in (60, 7, 30):
        await publish_section(subscription, topic.ledger, keyed(messages, codec_))
    found = [keys_in(ear) for _, ear in joined]
    assert sum(map(len, found)) == len(KEYS), "no key is at two consumers"
    for _, ear in joined:
        assert [position for position, _ in ear.parts] == sorted({position for position, _ in ear.parts})
        assert sum(bits.bit_count() for _, bits in ear.parts) > 0
    assert sum(consumer.state.pending_messages for consumer, _ in joined) == 97
    await acknowledged(subscription, joined)
    assert subscription.backlog == 0


@pytest.mark.parametrize("codec_", [pb.NONE, pb.LZ4])
def test_the_ends_that_are_noted_with_the_keys_are_those_of_the_messages(codec_: pb.CompressionType) -> None:
    whole = TopicEntry.read(keyed(30, codec_, size=200), check=True)
    assert len(hashes_of(whole)) == 30
    metadata, payload = codec.split(whole.payload)
    plain = codec.plain_payload(metadata, payload)
    assert whole.ends == codec.ends_of(metadata, plain)
    assert whole.ends[-1] == len(plain)


async def test_permits_are_not_exceeded_and_what_waits_comes_in_order(topic: BrokerTopic) -> None:
    subscription = await topic.subscribe("s", start=0)
    joined = [join(subscription, permits, kind=KEY_SHARED) for permits in (2, 1_000, 0)]
    await publish_section(subscription, topic.ledger, keyed(60))
    await publish_section(subscription, topic.ledger, keyed(60))
    (few, few_ear), (_, many_ear), (none, none_ear) = joined
    assert [bits.bit_count() for _, bits in few_ear.parts] == [2]
    assert len(many_ear.parts) == 2
    assert not none_ear.parts
    for consumer in (few, none):
        for _ in range(120):
            subscription.flow(consumer, 1)
        await settled(subscription)
    for ear in (few_ear, none_ear):
        order = [(position, place) for position, bits in ear.parts for place in places([bits])]
        assert order == sorted(order)
        assert len(order) == len(set(order))
    assert sum(bits.bit_count() for _, ear in joined for _, bits in ear.parts) == 120


async def test_a_consumer_without_parts_gets_whole_entries(topic: BrokerTopic) -> None:
    subscription = await topic.subscribe("s", start=0)
    joined = [join(subscription, 1, kind=KEY_SHARED, takes_parts=n > 0) for n in range(3)]
    await publish_section(subscription, topic.ledger, keyed(60))
    assert [bits.bit_count() for _, ear in joined for _, bits in ear.parts] == [60]


async def test_a_consumer_without_parts_gets_nothing_of_a_key_before_what_came_earlier(topic: BrokerTopic) -> None:
    """What waits of a divided batch goes to another consumer, and later entries of its keys wait for that (I16)."""
    subscription = await topic.subscribe("s", start=0)
    joined = [join(subscription, 1, kind=KEY_SHARED) for _ in range(2)]
    await publish_section(subscription, topic.ledger, keyed(30))
    stock, ear = join(subscription, 1_000, kind=KEY_SHARED, takes_parts=False)
    dispatcher = subscription.dispatcher
    owned = [
        key
        for key in KEYS
        if any(low <= sticky_key_hash(key.encode()) <= high for low, high in dispatcher.ranges_of(stock.state))
    ]
    assert owned, "it has keys of the batch"
    for key in owned:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key=key)
        await publish_section(subscription, topic.ledger, codec.encode_entry(metadata, b"x"))
    assert not ear.parts, "the messages before are at nobody yet"
    for consumer, _ in joined:
        subscription.flow(consumer, 1_000)
    await settled(subscription)
    assert sum(bits.bit_count() for _, one in joined for _, bits in one.parts) > 20, "some wait for another consumer"
    assert not ear.parts, "the messages before are not acknowledged"
    await acknowledged(subscription, joined)
    assert [bits for _, bits in ear.parts] == [1] * len(owned)
    await acknowledged(subscription, [(stock, ear)])
    assert subscription.backlog == 0
    assert not dispatcher._queues.draining  # type: ignore[attr-defined]


async def test_a_batch_with_many_messages_is_divided_too(topic: BrokerTopic) -> None:
    """It is compressed: a thread reads its keys, and the loop goes on."""
    subscription = await topic.subscribe("s", start=0)
    messages = KEYED_MESSAGES_MAX
    joined = [join(subscription, messages, kind=KEY_SHARED) for _ in range(3)]
    await publish_section(subscription, topic.ledger, keyed(messages, pb.LZ4, 100))
    if (keying := subscription._ahead._keying) is not None:
        await keying
        await settled(subscription)
    assert sum(bits.bit_count() for _, ear in joined for _, bits in ear.parts) == messages
    assert sum(len(keys_in(ear)) for _, ear in joined) == len(KEYS)


def lies(kind: str) -> bytes:
    """Return a batch that is not what it says."""
    whole = keyed(30)
    metadata, payload = codec.split(whole)
    match kind:
        case "more than it has":
            metadata.num_messages_in_batch = 100
        case "fewer than it has":
            metadata.num_messages_in_batch = 7
        case "no messages at all":
            payload = memoryview(b"\xff" * 1_000)
        case "a size below zero":
            packed = pb.SingleMessageMetadata(payload_size=-4).SerializeToString()
            payload = memoryview((len(packed).to_bytes(4, "big") + packed) * 30)
        case "encrypted":
            metadata.encryption_keys.add(key="k", value=b"v")
        case "too many":
            metadata.num_messages_in_batch = KEYED_MESSAGES_MAX + 1
    return codec.encode_entry(metadata, bytes(payload))


@pytest.mark.parametrize(
    "kind",
    ["more than it has", "fewer than it has", "no messages at all", "a size below zero", "encrypted", "too many"],
)
async def test_what_cannot_be_divided_is_delivered_as_a_whole_and_stops_nothing(
    kind: str, world: World, store: MemoryStore
) -> None:
    section = lies(kind)
    entry = TopicEntry.read(section, check=False)
    assert hashes_of(entry) == UNKNOWN
    topic = await topic_on(world, store)
    subscription = await topic.subscribe("s", start=0)
    joined = [join(subscription, 2 * KEYED_MESSAGES_MAX, kind=KEY_SHARED) for _ in range(3)]
    await publish_section(subscription, topic.ledger, section)
    await turns(lambda: any(ear.parts for _, ear in joined))
    assert [bits.bit_count() for _, ear in joined for _, bits in ear.parts] == [entry.messages]
    for consumer, ear in joined:
        for position, _ in ear.parts:
            subscription.acknowledge([(position, None)], consumer)
    assert subscription.backlog == 0
    await publish_section(subscription, topic.ledger, keyed(30))
    await settled(subscription)
    await acknowledged(subscription, joined)
    assert subscription.backlog == 0
    await topic.close()


async def test_no_acknowledgement_makes_a_subscription_stuck(topic: BrokerTopic) -> None:
    """Sets that are longer than the batch, that name messages of others, and messages that were never sent."""
    subscription = await topic.subscribe("s", start=0)
    joined = [join(subscription, permits, kind=KEY_SHARED) for permits in (3, 5, 0)]
    for _ in range(3):
        await publish_section(subscription, topic.ledger, keyed(30))
    first, _, last = (subscription.chain.position_at(index) for index in range(3))
    (a, ear_a), (b, _), (c, _) = joined
    mine = ear_a.parts[0][1]
    subscription.acknowledge([(first, (1 << 2_000) - 1 & ~mine)], b)  # those of another consumer
    subscription.acknowledge([(first, 1 << 99 | (1 << 30) - 2)], c)  # one that is perhaps in no consumer's hands
    subscription.acknowledge([(last, (1 << 30) - 1 & ~0b111)], a)  # never sent
    subscription.redeliver(a, [(first, 1 << 2_000), (last, 0b1), (last, 0)])
    for consumer, _ in joined:
        subscription.flow(consumer, (1 << 31) - 1)
    subscription.remove_consumer(b)
    joined.pop(1)
    await settled(subscription)
    await acknowledged(subscription, joined)
    assert subscription.backlog == 0
    assert not subscription.dispatcher.replay_count
    assert [consumer.state.pending_messages for consumer, _ in joined] == [0, 0]


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, KEY_SHARED])
async def test_all_chunks_of_a_message_are_at_one_consumer_and_come_again_together(
    topic: BrokerTopic, kind: SubscriptionType
) -> None:
    """That holds if a consumer joins that gets the key, and if only the last chunk is given back."""
    subscription = await topic.subscribe("s", start=0)
    joined = [join(subscription, 10, kind=kind)]

    async def publish(number: int) -> None:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key="key")
        metadata.uuid, metadata.num_chunks_from_msg, metadata.chunk_id = "u", 4, number
        await publish_section(subscription, topic.ledger, codec.encode_entry(metadata, b"x"))

    await publish(0)
    await publish(1)
    joined += [join(subscription, 10, kind=kind) for _ in range(20)]
    await publish(2)
    await publish(3)
    first, ear = joined[0]
    assert [position.entry_id for position, _ in ear.parts] == [0, 1, 2, 3]
    subscription.redeliver(first, [(ear.parts[-1][0], 0)])
    await settled(subscription)
    again = [[position.entry_id for position, _ in one.parts[4 * (one is ear) :]] for _, one in joined]
    assert [found for found in again if found] == [[0, 1, 2, 3]], "without one of its chunks a message is not complete"
    for consumer, one in joined:
        for position, _ in one.parts:
            subscription.acknowledge([(position, None)], consumer)
    assert subscription.backlog == 0


def test_a_message_without_a_key_goes_with_its_batch_and_every_form_of_a_key_is_one() -> None:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=1, num_messages_in_batch=4, partition_key="first"
    )
    singles = [
        pb.SingleMessageMetadata(payload_size=1),
        pb.SingleMessageMetadata(payload_size=1, partition_key="user"),
        pb.SingleMessageMetadata(payload_size=1, partition_key="dXNlcg==", partition_key_b64_encoded=True),
        pb.SingleMessageMetadata(payload_size=1, partition_key="other", ordering_key=b"user"),
    ]
    packed = [single.SerializeToString() for single in singles]
    plain = b"".join(len(one).to_bytes(4, "big") + one + b"x" for one in packed)
    found = hashes_of(TopicEntry.read(codec.encode_entry(metadata, plain), check=True))
    assert list(found) == [sticky_key_hash(b"first"), *[sticky_key_hash(b"user")] * 3]
