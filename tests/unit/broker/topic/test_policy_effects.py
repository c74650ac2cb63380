"""Effects of policies set while a topic is loaded, as its clients notice them; only policies that no other test
sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import encode_entry, split
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import ENTRY, Client, LoneBroker, T
from tests.unit.broker.world import turns

NAME = TopicName.parse("orders")
SHARED = pb.CommandSubscribe.SHARED
MESSAGES = 2  # of an entry


async def with_policies(lone: LoneBroker, values: Mapping[str, Any]) -> BrokerTopic:
    """Return the topic with these policies applied."""
    topic = await lone.broker.topics.get(NAME)
    await lone.broker.admin.namespaces.set_topic_policies(str(NAME), values)
    await turns(lambda: all(getattr(topic.policies, name) == value for name, value in values.items()))
    return topic


def produce(client: Client, topic: str = str(NAME), **fields: Any) -> None:
    client.say(T(type=T.PRODUCER, producer=pb.CommandProducer(topic=topic, producer_id=1, request_id=1, **fields)))


async def send(client: Client, count: int) -> None:
    if not client.answer(T.PRODUCER_SUCCESS):
        produce(client)
        await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    before = answers(client, T.SEND_RECEIPT)
    for number in range(count):
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=MESSAGES * number)), ENTRY)
    await turns(lambda: answers(client, T.SEND_RECEIPT) == before + count)


async def subscribe(client: Client, consumer_id: int = 1, name: str = "billing") -> None:
    wanted = pb.CommandSubscribe(
        topic=str(NAME), subscription=name, sub_type=SHARED, consumer_id=consumer_id, request_id=10 + consumer_id
    )
    before = answers(client, T.SUCCESS) + answers(client, T.ERROR)
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: answers(client, T.SUCCESS) + answers(client, T.ERROR) > before)
    client.say(T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=consumer_id, message_permits=1_000)))


def answers(client: Client, kind: int) -> int:
    return sum(answer.type == kind for answer in client.transport.answers)


def last_error(client: Client) -> int:
    return next(answer.error.error for answer in reversed(client.transport.answers) if answer.type == T.ERROR)


async def test_a_topic_has_as_many_consumers_as_it_may(client: Client, lone: LoneBroker) -> None:
    await subscribe(client)
    topic = await with_policies(lone, {"max_consumers": 1})
    await subscribe(client, 2, "other")
    assert last_error(client) == pb.CONSUMER_BUSY
    await with_policies(lone, {"max_consumers": 2})
    await subscribe(client, 2, "other")
    assert sum(len(one.consumers) for one in topic.subscriptions.values()) == 2


async def test_unacknowledged_messages_of_all_consumers_are_limited(client: Client, lone: LoneBroker) -> None:
    topic = await with_policies(lone, {"max_unacked_per_subscription": 4 * MESSAGES})
    for consumer_id in (1, 2):
        await subscribe(client, consumer_id)
    await send(client, 10)
    billing = topic.subscriptions["billing"]
    await turns(lambda: billing.dispatcher.is_blocked and answers(client, T.MESSAGE) == 4)
    assert billing.entries_out == 4
    for consumer_id in (1, 2):  # each has less than a consumer may have; its client must not take chunks for lost
        client.say(
            T(type=T.CONSUMER_STATS, consumer_stats=pb.CommandConsumerStats(request_id=1, consumer_id=consumer_id))
        )
        await turns(lambda count=consumer_id: answers(client, T.CONSUMER_STATS_RESPONSE) == count)  # type: ignore[misc]
        assert client.transport.answers[-1].consumer_stats_response.blocked_consumer_on_unacked_msgs
    await with_policies(lone, {"max_unacked_per_subscription": 0})
    await turns(lambda: answers(client, T.MESSAGE) == 10)


@pytest.mark.parametrize(
    "name",
    [
        "dispatch_messages_per_second", "dispatch_bytes_per_second",
        "subscription_dispatch_messages_per_second", "subscription_dispatch_bytes_per_second",
    ],
)  # fmt: skip
async def test_what_goes_out_is_limited_by_messages_and_by_bytes(client: Client, lone: LoneBroker, name: str) -> None:
    topic = await with_policies(lone, {name: 1})
    await subscribe(client)
    await send(client, 100)
    await turns(lambda: topic.subscriptions["billing"]._timer is not None and answers(client, T.MESSAGE) > 0)
    assert topic.subscriptions["billing"].entries_out < 100
    await with_policies(lone, {name: 0})
    await turns(lambda: answers(client, T.MESSAGE) == 100)


async def test_a_slow_rate_lets_out_what_a_period_allows(client: Client, lone: LoneBroker) -> None:
    """30 in 60 seconds were no limit before, because 30 // 60 is none."""
    topic = await with_policies(
        lone, {"subscription_dispatch_messages_per_second": 0.5, "subscription_dispatch_period_seconds": 60}
    )
    await subscribe(client)
    await send(client, 40)
    await turns(lambda: topic.subscriptions["billing"]._timer is not None and answers(client, T.MESSAGE) > 0)
    assert 30 <= topic.subscriptions["billing"].messages_out < 40, "and one more every two seconds"
    await with_policies(lone, {"subscription_dispatch_messages_per_second": 0})
    await turns(lambda: answers(client, T.MESSAGE) == 40)


async def test_one_subscription_has_a_rate_of_its_own(client: Client, lone: LoneBroker) -> None:
    topic = await lone.broker.topics.get(NAME)
    namespaces, rate = lone.broker.admin.namespaces, {"subscription_dispatch_messages_per_second": 1}
    await namespaces.set_topic_policies(str(NAME), rate, "slow")
    await turns(lambda: topic.policies.of_subscription("slow").subscription_dispatch_messages_per_second == 1)
    await subscribe(client, 1, "slow")
    await subscribe(client, 2, "fast")
    await send(client, 100)
    slow, fast = topic.subscriptions["slow"], topic.subscriptions["fast"]
    await turns(lambda: fast.entries_out == 100 and slow._timer is not None)
    assert slow.entries_out < 100
    assert await namespaces.subscription_policies(str(NAME)) == {"slow": rate}
    with pytest.raises(BadRequestError, match="no policy of a single subscription"):
        await namespaces.set_topic_policies(str(NAME), {"max_producers": 1}, "slow")
    await namespaces.remove_topic_policies(str(NAME), list(rate), "slow")
    await turns(lambda: slow.entries_out == 100)
    assert await namespaces.subscription_policies(str(NAME)) == {}


async def test_a_message_may_not_be_delayed_longer_than_policies_allow(client: Client, lone: LoneBroker) -> None:
    await with_policies(lone, {"delayed_ms_max": 60_000})
    produce(client)
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    for number, seconds in enumerate((30, 90)):
        metadata, payload = split(ENTRY)
        metadata.deliver_at_time = wall_ms() + 1_000 * seconds
        section = encode_entry(metadata, bytes(payload))
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=number)), section)
    await turns(lambda: answers(client, T.SEND_RECEIPT) == answers(client, T.SEND_ERROR) == 1)


async def test_a_consumer_subscribes_as_often_as_it_may(lone: LoneBroker) -> None:
    await with_policies(lone, {"subscribes_per_second": 2 / 60, "subscribe_period_seconds": 60})
    for attempt in range(3):
        client = Client(lone.broker)
        await subscribe(client)
        if attempt == 2:
            assert last_error(client) == pb.SERVICE_NOT_READY
        else:
            assert answers(client, T.ERROR) == 0
        client.leave()


async def test_what_comes_in_is_limited_by_bytes(client: Client, lone: LoneBroker) -> None:
    await with_policies(lone, {"publish_bytes_per_second": 1})
    await send(client, 3)
    assert client.connection.is_throttled


async def test_producers_without_a_schema_are_refused_where_policies_say_so(lone: LoneBroker) -> None:
    schema = pb.Schema(name="text", type=pb.Schema.STRING, schema_data=b"")
    first, second = Client(lone.broker), Client(lone.broker)
    produce(first, schema=schema)
    await turns(lambda: first.answer(T.PRODUCER_SUCCESS))
    await with_policies(lone, {"schema_validation_enforced": True})
    produce(second)
    await turns(lambda: second.answer(T.ERROR))
    assert last_error(second) == pb.INCOMPATIBLE_SCHEMA
    for client in (first, second):
        client.leave()


async def test_ledgers_end_by_size_and_by_age_and_follow_the_policies_of_their_creation(
    client: Client, lone: LoneBroker
) -> None:
    topic = await with_policies(lone, {"ledger_bytes_max": 1})
    await send(client, 1)
    await turns(lambda: topic.ledger.writer.last_add_confirmed < 0 and not topic.ledger._is_rolling)
    await lone.broker.admin.namespaces.set_topic_policies(
        str(NAME), {"ledger_bytes_max": 1 << 30, "ensemble_size": 5, "write_quorum": 4, "ack_quorum": 2}
    )
    await turns(lambda: topic.policies.persistence.ensemble_size == 5)
    await send(client, 1)
    assert topic.ledger.writer.last_add_confirmed == 0
    topic.ledger._opened_at -= topic.policies.ledger_age_seconds_max
    await lone.broker.upkeep.round()
    await turns(lambda: topic.ledger.writer.last_add_confirmed < 0)
    assert topic.ledger.writer.metadata.ack_quorum == 2
    assert topic.ledger.writer.metadata.ensemble_size == 5


async def test_a_topic_is_compacted_when_enough_was_published(lone: LoneBroker) -> None:
    topic = await with_policies(lone, {"compaction_threshold_bytes": 1_000})
    await lone.broker.admin.publish(str(NAME), [b"x" * 100], ["key"])
    await lone.broker.upkeep.round()
    assert not topic.compaction.is_running
    await lone.broker.admin.publish(str(NAME), [b"x" * 1_000], ["key"])
    await lone.broker.upkeep.round()
    assert topic.compaction.is_running
    await topic.compaction.stop()


async def test_snapshots_of_deduplication_come_by_time_too(client: Client, lone: LoneBroker) -> None:
    topic = await with_policies(lone, {"deduplication": True, "deduplication_snapshot_seconds": 10})
    await turns(lambda: topic.admission.dedup.current is not None)
    dedup = topic.admission.dedup.current
    assert dedup is not None
    await send(client, 1)
    dedup.housekeep()
    assert dedup.mark == 0
    dedup._snapshot_ms -= 10_000
    dedup.housekeep()
    await turns(lambda: dedup.mark == 1)


@pytest.mark.parametrize(("seconds", "is_known"), [(3_600, False), (86_400, True), (-1, True)])
async def test_deduplication_remembers_producers_that_are_away(
    lone: LoneBroker, seconds: int, *, is_known: bool
) -> None:
    topic = await with_policies(lone, {"deduplication": True, "deduplication_seconds": seconds})
    await turns(lambda: topic.admission.dedup.current is not None)
    dedup = topic.admission.dedup.current
    assert dedup is not None
    dedup.core.replay("nightly", 7, topic.ledger.ages.now_ms() - 20 * 3_600_000)
    dedup.housekeep()
    assert dedup.core.last("nightly") == (7 if is_known else -1)


async def test_topics_are_created_where_the_namespace_allows_it(lone: LoneBroker) -> None:
    broker, new = lone.broker, TopicName.parse("new")
    await broker.ownership.resolve(new)
    await broker.admin.namespaces.set_policies("public/default", {"auto_create_topics": False})
    first, second = Client(broker), Client(broker)
    produce(first, str(new))
    await turns(lambda: first.answer(T.ERROR))
    assert last_error(first) == pb.TOPIC_NOT_FOUND
    await broker.admin.namespaces.set_policies("public/default", {"auto_create_topics": True})
    produce(second, str(new))
    await turns(lambda: second.answer(T.PRODUCER_SUCCESS))
    for client in (first, second):
        client.leave()


async def test_only_the_subscription_types_that_are_enabled(client: Client, lone: LoneBroker) -> None:
    topic = await with_policies(lone, {"subscription_types": "Exclusive,Failover"})
    await subscribe(client)
    assert last_error(client) == pb.NOT_ALLOWED_ERROR
    await with_policies(lone, {"subscription_types": "Exclusive,Shared"})
    await subscribe(client)
    assert len(topic.subscriptions["billing"].consumers) == 1


async def test_producers_encrypt_where_that_is_required(lone: LoneBroker) -> None:
    plain, secret = Client(lone.broker), Client(lone.broker)
    await with_policies(lone, {"encryption_required": True})
    produce(plain)
    await turns(lambda: plain.answer(T.ERROR))
    assert last_error(plain) == pb.NOT_ALLOWED_ERROR
    produce(secret, encrypted=True)
    await turns(lambda: secret.answer(T.PRODUCER_SUCCESS))
    for number, section in enumerate((ENTRY, encrypted(ENTRY))):
        secret.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=number)), section)
    await turns(lambda: answers(secret, T.SEND_RECEIPT) == 1)
    assert answers(secret, T.SEND_ERROR) == 1
    for client in (plain, secret):
        client.leave()


def encrypted(section: bytes) -> bytes:
    """Return an entry whose metadata says that it is encrypted."""
    metadata, payload = split(section)
    metadata.encryption_keys.add(key="k", value=b"v")
    return encode_entry(metadata, bytes(payload))
