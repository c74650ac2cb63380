"""Non-durable subscriptions last as long as their consumers, however these leave, or if they never come (I15)."""

from __future__ import annotations

from dataclasses import replace

from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.stats import internal_stats
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.topic.test_cancellations import subscribe
from tests.unit.broker.topic_world import listen, publish, topic_on
from tests.unit.broker.world import World, turns

ORDERS = TopicName.parse("orders")


async def test_a_reader_that_is_refused_leaves_nothing_behind(lone: LoneBroker) -> None:
    """Each reader has a name of its own: every one that is refused would be kept for ever."""
    topic = await lone.broker.topics.get(ORDERS)
    topic.apply_policies(replace(topic.policies, max_consumers=1))
    client = Client(lone.broker)
    subscribe(client, "reader-1", 1, is_durable=False)
    await turns(lambda: client.answer(T.SUCCESS))
    for number in range(2, 5):
        subscribe(client, f"reader-{number}", number, is_durable=False)
    await turns(lambda: sum(answer.type == T.ERROR for answer in client.transport.answers) == 3)
    assert set(topic.subscriptions) == {"reader-1"}
    client.leave()
    assert not topic.subscriptions


async def test_a_reader_that_seeks_and_does_not_come_back_leaves_nothing_behind(lone: LoneBroker) -> None:
    topic = await lone.broker.topics.get(ORDERS)
    client = Client(lone.broker)
    subscribe(client, "reader-1", 1, is_durable=False)
    await turns(lambda: client.answer(T.SUCCESS))
    client.transport.answers.clear()
    seek = pb.CommandSeek(consumer_id=1, request_id=9, message_publish_time=1)
    client.say(T(type=T.SEEK, seek=seek))
    await turns(lambda: client.answer(T.SUCCESS))
    assert set(topic.subscriptions) == {"reader-1"}, "it comes back, as a rule"
    client.leave()
    await topic.housekeep()
    assert set(topic.subscriptions) == {"reader-1"}
    topic.subscriptions["reader-1"].idle_since_ms -= 3_600_000
    await topic.housekeep()
    assert not topic.subscriptions


async def test_a_reader_behind_what_was_trimmed_is_told_of(world: World, store: MemoryStore) -> None:
    """Entries that it acknowledged may be gone by then."""
    world.policies = replace(world.policies, ledger_entries_max=3, retention_seconds=0)
    topic = await topic_on(world, store)
    await publish(topic.ledger, *"abcdefg")
    reader = await topic.subscribe("reader", start=0, is_durable=False)
    listen(reader, SubscriptionType.SHARED, permits=0)
    reader.acknowledge([(topic.ledger.chain.position_at(index), None) for index in (1, 2, 4)])
    await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)
    assert await topic.trim() == 2
    cursors = (await internal_stats(topic, world.ledgers))["cursors"]
    assert cursors["reader"]["individuallyDeletedMessages"] == "[]"


async def test_a_seek_into_a_batch_that_is_gone_leaves_out_nothing_of_the_next_one(lone: LoneBroker) -> None:
    topic, admin = await lone.broker.topics.get(ORDERS), lone.broker.admin
    topic.apply_policies(replace(topic.policies, ledger_entries_max=2, retention_seconds=0))
    for _ in range(5):
        await admin.publish("orders", [b"a", b"b", b"c"])
    await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)
    gone = topic.ledger.chain.position_at(0)
    await topic.subscribe("other", start=4)
    assert await topic.trim() == 2
    client = Client(lone.broker)
    subscribe(client, "billing", 1)
    await turns(lambda: client.answer(T.SUCCESS))
    client.transport.answers.clear()
    seek = pb.CommandSeek(consumer_id=1, request_id=9)
    seek.message_id.ledger_id, seek.message_id.entry_id = gone
    seek.message_id.ack_set.append(0b110)
    client.say(T(type=T.SEEK, seek=seek))
    await turns(lambda: client.answer(T.SUCCESS))
    cursor = topic.subscriptions["billing"].cursor
    assert cursor.mark == 4
    assert cursor.unacknowledged_bits(4) is None
    client.leave()
