"""The stock Pulsar client, blocking and asyncio: every subscription type, kind of acknowledgement and form of seek."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pulsar
import pulsar.asyncio
import pytest

from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.metadata.model import Policies
from heliograph.protocol.hashing import sticky_key_hash
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, wait_for

EARLIEST = pulsar.InitialPosition.Earliest
SHARED, KEY_SHARED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
FAILOVER = pulsar.ConsumerType.Failover
RECEIVE_MS = 60_000


@pytest.fixture(scope="module", autouse=True)
def tardy(cluster: BrokerCluster) -> Iterator[pulsar.Consumer]:
    """It acknowledges one message of two. Its client waits ten seconds, the least it takes, while other tests run."""
    with cluster.client() as connected:
        consumer = connected.subscribe("timeouts", "sub", SHARED, unacked_messages_timeout_ms=10_000)
        send(connected, "timeouts", 2)
        messages = [consumer.receive(RECEIVE_MS) for _ in range(2)]
        consumer.acknowledge(messages[0])
        yield consumer


def send(client: pulsar.Client, topic: str, count: int, first: int = 0, **options: Any) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic)
    ids = [producer.send(b"m%d" % n, **options) for n in range(first, first + count)]
    producer.close()
    return ids


def batch(client: pulsar.Client, topic: str, count: int) -> list[pulsar.MessageId]:
    """Publish one entry of ``count`` messages."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    ids: list[pulsar.MessageId] = []
    for n in range(count):
        producer.send_async(b"m%d" % n, lambda result, one: ids.append(one))
    producer.flush()
    producer.close()
    assert len({one.entry_id() for one in ids}) == 1
    return ids


def receive(consumer: Any, count: int) -> list[bytes]:
    return [consumer.receive(RECEIVE_MS).data() for _ in range(count)]


def drain(consumer: pulsar.Consumer, wait_ms: int = 300) -> list[pulsar.Message]:
    messages = []
    while True:
        try:
            messages.append(consumer.receive(wait_ms))
        except pulsar.Timeout:
            return messages


def nothing_more(consumer: pulsar.Consumer) -> None:
    assert [message.data() for message in drain(consumer)] == []


def receive_until(consumer: pulsar.Consumer, last: bytes) -> list[bytes]:
    """Receive messages up to and including the one of that payload."""
    found: list[bytes] = []
    while last not in found:
        found += receive(consumer, 1)
    return found


def names(*numbers: int) -> list[bytes]:
    return [b"m%d" % n for n in numbers]


def subscription(cluster: BrokerCluster, topic: str, name: str = "sub") -> dict[str, Any]:
    cluster.run(cluster.admin.cursors.properties(topic, name))  # waits until its cursor is recovered
    found: dict[str, Any] = cluster.run(cluster.admin.topic_stats(topic))["subscriptions"][name]
    return found


# Delayed delivery


def pass_time(cluster: BrokerCluster, topic: str, name: str, milliseconds: int) -> None:
    """Set the clock of a subscription's delayed deliveries."""

    found = cluster.run(_topic(cluster, topic).subscription(name))

    async def shift() -> None:
        found.delays.clock = lambda: time.time_ns() // 1_000_000 + milliseconds
        found.schedule_pump()

    cluster.run(shift())


def test_delayed_messages_wait_and_block_nobody(cluster: BrokerCluster, client: pulsar.Client) -> None:
    exclusive = client.subscribe("delayed", "exclusive")
    consumers = {kind: client.subscribe("delayed", kind.name, kind) for kind in (SHARED, KEY_SHARED)}
    send(client, "delayed", 3, deliver_after=timedelta(hours=1))
    send(client, "delayed", 3, first=3)
    assert receive(exclusive, 6) == names(*range(6))  # order matters there
    for kind, consumer in consumers.items():
        assert receive(consumer, 3) == names(3, 4, 5)
        assert subscription(cluster, "delayed", kind.name)["msgDelayed"] == 3
        nothing_more(consumer)
        pass_time(cluster, "delayed", kind.name, 3_700_000)
        assert sorted(receive(consumer, 3)) == names(0, 1, 2)
        assert subscription(cluster, "delayed", kind.name)["msgDelayed"] == 0
        nothing_more(consumer)


def test_a_delay_ends_by_itself_and_not_too_early(client: pulsar.Client) -> None:
    consumer = client.subscribe("timer", "sub", SHARED)
    due_ms = time.time_ns() // 1_000_000 + 700
    send(client, "timer", 2, deliver_at=due_ms)
    assert sorted(receive(consumer, 2)) == names(0, 1)
    assert time.time_ns() // 1_000_000 >= due_ms


def test_delayed_messages_stay_delayed_when_the_topic_is_opened_again(
    cluster: BrokerCluster, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.actors.broker.delayed.index.RUN_ENTRIES_MAX", 10)
    topic = "delayed-again"
    consumer = client.subscribe(topic, "sub", SHARED)
    send(client, topic, 45, deliver_after=timedelta(hours=1))
    wait_for(lambda: subscription(cluster, topic)["msgDelayed"] == 45, "all to be held back")
    cluster.run(cluster.admin.unload_topic(topic))
    wait_for(lambda: len(subscription(cluster, topic)["consumers"]) == 1, "the consumer to be back")
    wait_for(lambda: subscription(cluster, topic)["msgDelayed"] == 45, "all to be held back again")
    send(client, topic, 1, first=45)
    assert receive(consumer, 1) == names(45)
    nothing_more(consumer)
    pass_time(cluster, topic, "sub", 3_700_000)
    assert sorted(receive(consumer, 45)) == sorted(names(*range(45)))
    nothing_more(consumer)


def test_the_policy_turns_delays_off(cluster: BrokerCluster, client: pulsar.Client) -> None:
    consumer = client.subscribe("undelayed", "sub", SHARED)
    arguments = {"topic": "undelayed", "values": {"delayed_delivery": False}}
    cluster.run(cluster.admin.run("namespaces.set_topic_policies", arguments))
    wait_for(lambda: not _policies(cluster, "undelayed").delayed_delivery, "the policy to be known")
    send(client, "undelayed", 1, deliver_after=timedelta(hours=1))
    assert receive(consumer, 1) == names(0)


def _topic(cluster: BrokerCluster, name: str) -> BrokerTopic:
    found = cluster.owner_of(name).broker.topics.find(TopicName.parse(name))
    assert found is not None
    return found


def _policies(cluster: BrokerCluster, topic: str) -> Policies:
    return _topic(cluster, topic).policies


# Failover


def test_failover_by_priority_and_the_listener_is_told(cluster: BrokerCluster, client: pulsar.Client) -> None:
    first = client.subscribe("active", "sub", FAILOVER, consumer_name="b")
    send(client, "active", 4)
    for message in [first.receive(RECEIVE_MS) for _ in range(2)]:
        first.acknowledge(message)
    second = client.subscribe("active", "sub", FAILOVER, consumer_name="a")
    stats = subscription(cluster, "active")
    active = stats["activeConsumerName"]
    assert active in ("a", "b")
    again = [subscription(cluster, "active")["activeConsumerName"] for _ in range(3)]
    assert again == [active] * 3
    winner, loser = (first, second) if active == "b" else (second, first)
    send(client, "active", 1, first=4)
    receive_until(winner, b"m4")
    nothing_more(winner)
    winner.close()
    assert receive(loser, 3) == names(2, 3, 4)  # after the delay, from what is not acknowledged on


def test_partitions_spread_over_failover_consumers(cluster: BrokerCluster, client: pulsar.Client) -> None:
    cluster.run(cluster.admin.create_topic("active-parts", 4))
    consumers = [client.subscribe("active-parts", "sub", FAILOVER, consumer_name=name) for name in "ab"]
    stats = cluster.run(cluster.admin.topic_stats("active-parts"))["partitions"]
    active = [part["subscriptions"]["sub"]["activeConsumerName"] for _, part in sorted(stats.items())]
    assert active == ["a", "b", "a", "b"]
    producer = client.create_producer("active-parts")
    for n in range(40):
        producer.send(b"m%d" % n)
    got: list[set[bytes]] = [set(), set()]
    while len(got[0] | got[1]) < 40:
        for found, consumer in zip(got, consumers, strict=True):
            found |= {message.data() for message in drain(consumer, 50)}
    assert sorted(got[0] | got[1]) == sorted(names(*range(40)))
    assert all(got)


# Key_Shared


def key_in(low: int, high: int) -> str:
    return next(f"k{n}" for n in range(10_000) if low <= sticky_key_hash(b"k%d" % n) <= high)


def test_sticky_ranges_and_their_conflict(cluster: BrokerCluster, client: pulsar.Client) -> None:
    def policy(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))

    low = client.subscribe("sticky", "sub", KEY_SHARED, key_shared_policy=policy((0, 30_000)))
    high = client.subscribe("sticky", "sub", KEY_SHARED, key_shared_policy=policy((30_001, 60_000)))
    with pytest.raises(pulsar.ConsumerAssignError):
        client.subscribe("sticky", "sub", KEY_SHARED, key_shared_policy=policy((60_000, 65_535)))
    producer = client.create_producer("sticky")
    for n, key in enumerate((key_in(1, 30_000), key_in(30_001, 60_000), key_in(60_001, 65_535))):
        producer.send(b"m%d" % n, partition_key=key)
    assert receive(low, 1) == names(0)
    assert receive(high, 1) == names(1)
    shown = {one["keyHashRanges"][0] for one in subscription(cluster, "sticky")["consumers"]}
    assert shown == {"[0, 30000]", "[30001, 60000]"}
    nothing_more(low)
    rest = client.subscribe("sticky", "sub", KEY_SHARED, key_shared_policy=policy((60_001, 65_535)))
    assert receive(rest, 1) == names(2)  # it waited for a consumer


def test_draining_hashes_are_shown(cluster: BrokerCluster, client: pulsar.Client) -> None:
    first = client.subscribe("draining", "sub", KEY_SHARED)
    producer = client.create_producer("draining")
    for n in range(40):
        producer.send(b"m%d" % n, partition_key=f"k{n}")
    held = [first.receive(RECEIVE_MS) for _ in range(40)]
    second = client.subscribe("draining", "sub", KEY_SHARED)
    stats = subscription(cluster, "draining")
    draining = stats["consumers"][0]["drainingHashes"]
    assert stats["drainingHashesCount"] == len(draining) > 0
    for n in range(40, 80):
        producer.send(b"m%d" % n, partition_key=f"k{n - 40}")
    nothing_more(second)  # I16
    for message in held:
        first.acknowledge(message)
    moved = [second.receive(RECEIVE_MS).partition_key() for _ in draining]
    assert len(set(moved)) == len(draining)
    assert subscription(cluster, "draining")["drainingHashesCount"] == 0


def test_out_of_order_delivery_does_not_wait(client: pulsar.Client) -> None:
    policy = pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    first = client.subscribe("loose", "sub", KEY_SHARED, key_shared_policy=policy)
    producer = client.create_producer("loose")
    for n in range(20):
        producer.send(b"m%d" % n, partition_key=f"k{n}")
    assert len(receive(first, 20)) == 20
    second = client.subscribe("loose", "sub", KEY_SHARED, key_shared_policy=policy)
    for n in range(20, 40):
        producer.send(b"m%d" % n, partition_key=f"k{n - 20}")
    assert receive(second, 1), "it gets keys of which the first holds messages"


# Acknowledgements


def test_cumulative_acknowledgement_inside_a_batch(cluster: BrokerCluster, client: pulsar.Client) -> None:
    """Without batch-index acks the client sends the entry before, whose id may be -1."""
    consumer = client.subscribe("cumulative", "sub")
    batch(client, "cumulative", 4)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(4)]
    consumer.acknowledge_cumulative(messages[1])
    consumer.close()
    consumer = client.subscribe("cumulative", "sub")
    messages = [consumer.receive(RECEIVE_MS) for _ in range(4)]
    consumer.acknowledge_cumulative(messages[3])
    wait_for(lambda: subscription(cluster, "cumulative")["msgBacklog"] == 0, "the acknowledgement")
    by_index = client.subscribe("cumulative", "by-index", initial_position=EARLIEST, batch_index_ack_enabled=True)
    by_index.acknowledge_cumulative([by_index.receive(RECEIVE_MS) for _ in range(4)][1])
    by_index.close()
    by_index = client.subscribe("cumulative", "by-index", batch_index_ack_enabled=True)
    assert receive(by_index, 2) == names(2, 3)


def test_whole_redelivery_on_exclusive_starts_over(client: pulsar.Client) -> None:
    consumer = client.subscribe("redeliver", "sub")
    send(client, "redeliver", 5)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(5)]
    consumer.acknowledge(messages[1])
    consumer.redeliver_unacknowledged_messages()
    assert receive(consumer, 4) == names(0, 2, 3, 4)
    nothing_more(consumer)


def test_a_message_that_fails_again_and_again_becomes_a_dead_letter(
    cluster: BrokerCluster, client: pulsar.Client
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, "dead-letters", "dead")
    consumer = client.subscribe("dlq", "sub", SHARED, negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy)
    send(client, "dlq", 3)
    counts: dict[bytes, int] = {}
    while counts.get(b"m1", 0) < 3:
        message = consumer.receive(RECEIVE_MS)
        counts[message.data()] = counts.get(message.data(), 0) + 1
        if message.data() == b"m1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    dead = client.subscribe("dead-letters", "dead", initial_position=EARLIEST)
    found = dead.receive(RECEIVE_MS)
    assert found.data() == b"m1"
    assert found.properties()["REAL_TOPIC"].endswith("dlq")
    wait_for(lambda: subscription(cluster, "dlq")["msgBacklog"] == 0, "the original to be acknowledged")


# Places


def test_seek_inside_a_batch(client: pulsar.Client) -> None:
    consumer = client.subscribe("seek-batch", "sub", initial_position=EARLIEST)
    ids = batch(client, "seek-batch", 10)
    assert receive(consumer, 10) == names(*range(10))
    consumer.seek(ids[6])
    assert receive(consumer, 3) == names(7, 8, 9)
    inclusive = client.subscribe("seek-batch", "inclusive", start_message_id_inclusive=True)
    inclusive.seek(ids[6])
    assert receive(inclusive, 4) == names(6, 7, 8, 9)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED, FAILOVER])
def test_seek_with_a_small_queue_on_every_type(client: pulsar.Client, kind: pulsar.ConsumerType) -> None:
    topic = f"seek-{kind.name.lower()}"
    consumer = client.subscribe(topic, "sub", kind, receiver_queue_size=3)
    ids = send(client, topic, 12)
    for _ in range(12):
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    for _ in range(2):
        consumer.seek(ids[3])
        assert sorted(receive(consumer, 8)) == sorted(names(*range(4, 12)))


def test_seek_by_time_on_a_partitioned_topic(cluster: BrokerCluster, client: pulsar.Client) -> None:
    cluster.run(cluster.admin.create_topic("seek-parts", 3))
    consumer = client.subscribe("seek-parts", "sub", SHARED)
    producer = client.create_producer("seek-parts")
    for n in range(15):
        producer.send(b"m%d" % n)
    time.sleep(0.01)
    middle = int(time.time() * 1_000)
    for n in range(15, 30):
        producer.send(b"m%d" % n)
    for _ in range(30):
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    consumer.seek(middle)
    assert sorted(receive(consumer, 15)) == sorted(names(*range(15, 30)))
    consumer.seek(0)
    assert sorted(set(receive(consumer, 30))) == sorted(names(*range(30)))


def test_readers_and_a_table_view_on_a_plain_topic(client: pulsar.Client) -> None:
    producer = client.create_producer("table")
    for n in range(6):
        producer.send(b"v%d" % n, partition_key=f"k{n % 3}")
    view = client.create_table_view("table")
    assert {key: view.get(key) for key in ("k0", "k1", "k2")} == {"k0": b"v3", "k1": b"v4", "k2": b"v5"}
    producer.send(b"v6", partition_key="k0")
    wait_for(lambda: view.get("k0") == b"v6", "the table to follow")
    view.close()
    reader = client.create_reader("table", pulsar.MessageId.earliest)
    reader.seek(pulsar.MessageId.latest)
    assert not reader.has_message_available()


# Several topics


def test_one_consumer_on_many_topics_and_on_a_pattern(client: pulsar.Client) -> None:
    for name in ("many-a", "many-b", "many-c"):
        send(client, name, 2)
    consumer = client.subscribe(["many-a", "many-b"], "sub", SHARED, initial_position=EARLIEST)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(4)]
    assert sorted(m.topic_name().rpartition("/")[2] for m in messages) == ["many-a", "many-a", "many-b", "many-b"]
    for message in messages:
        consumer.acknowledge(message)
    pattern = client.subscribe(re.compile("persistent://public/default/many-.*"), "all", initial_position=EARLIEST)
    assert sorted(receive(pattern, 6)) == sorted(names(0, 0, 0, 1, 1, 1))


# Limits


def test_unacknowledged_messages_are_limited_and_shown(cluster: BrokerCluster, client: pulsar.Client) -> None:
    consumer = client.subscribe("limited", "sub", SHARED)
    arguments = {"topic": "limited", "values": {"max_unacked_per_consumer": 10, "max_consumers_per_subscription": 1}}
    cluster.run(cluster.admin.run("namespaces.set_topic_policies", arguments))
    wait_for(lambda: _policies(cluster, "limited").max_unacked_per_consumer == 10, "the policy to be known")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe("limited", "sub", SHARED)
    send(client, "limited", 30)
    got = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    nothing_more(consumer)
    shown = subscription(cluster, "limited")["consumers"][0]
    assert (shown["blockedConsumerOnUnackedMsgs"], shown["unackedMessages"]) == (True, 10)
    for message in got:
        consumer.acknowledge(message)
    assert len([consumer.receive(RECEIVE_MS) for _ in range(10)]) == 10


def test_dispatch_rates_hold(cluster: BrokerCluster, client: pulsar.Client) -> None:
    consumer = client.subscribe("slow", "sub", SHARED)
    arguments = {"topic": "slow", "values": {"subscription_dispatch_messages_per_second": 20}}
    cluster.run(cluster.admin.run("namespaces.set_topic_policies", arguments))
    wait_for(lambda: _policies(cluster, "slow").subscription_dispatch_messages_per_second == 20, "the policy")
    started = time.monotonic()
    send(client, "slow", 60)
    assert sorted(receive(consumer, 60)) == sorted(names(*range(60)))
    assert time.monotonic() - started >= 1.5, "20 at once, 40 in two seconds"


# The asyncio client


async def test_the_asyncio_client(cluster: BrokerCluster) -> None:
    client = pulsar.asyncio.Client(cluster.service_url)
    try:
        consumers = [await client.subscribe("async", kind.name, kind) for kind in (SHARED, KEY_SHARED, FAILOVER)]
        producer = await client.create_producer("async")
        ids = [await producer.send(b"m%d" % n) for n in range(10)]
        for consumer in consumers:
            messages = [await asyncio.wait_for(consumer.receive(), 60) for _ in range(10)]
            assert sorted(message.data() for message in messages) == sorted(names(*range(10)))
            for message in messages[:5]:
                await consumer.acknowledge(message)
            await consumer.seek(ids[7])
            assert (await asyncio.wait_for(consumer.receive(), 60)).data() == b"m8"
            await consumer.unsubscribe()
        reader = await client.create_reader("async", pulsar.MessageId.earliest)
        assert (await asyncio.wait_for(reader.read_next(), 60)).data() == b"m0"
    finally:
        await client.close()
    assert cluster.run(cluster.admin.subscriptions("async")) == []


# What time did meanwhile


def test_acknowledgement_timeouts_deliver_again_and_count(tardy: pulsar.Consumer) -> None:
    again = tardy.receive(RECEIVE_MS)
    assert again.data() == b"m1"
    assert again.redelivery_count() >= 1
    tardy.acknowledge(again)
