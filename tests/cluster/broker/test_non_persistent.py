"""Non-persistent topics with the stock client and ours."""

from __future__ import annotations

import re
from typing import Any

import pulsar
import pytest

from heliograph.actors.broker.topic.non_persistent import NonPersistentTopic
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.consumer.message import Message
from heliograph.client.options import ClientOptions
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, wait_for

BEFORE = "non-persistent://public/default/"
RECEIVE_MS = 60_000
CLUSTER: dict[str, Any] = {"bookies": 0, "brokers": 2}  # nothing is ever stored


def topic_of(cluster: BrokerCluster, name: str) -> NonPersistentTopic:
    found = cluster.owner_of(name).broker.topics.find(TopicName.parse(name))
    assert isinstance(found, NonPersistentTopic)
    return found


def test_messages_reach_those_who_listen(cluster: BrokerCluster, client: pulsar.Client) -> None:
    topic = BEFORE + "listen"
    producer = client.create_producer(topic)
    sent = producer.send(b"nobody hears this")
    assert (sent.ledger_id(), sent.entry_id()) == (0, 0)
    consumers = [client.subscribe(topic, f"sub-{number}") for number in range(3)]
    for number in range(50):
        producer.send(b"%d" % number)
    for consumer in consumers:
        assert [consumer.receive(RECEIVE_MS).data() for _ in range(50)] == [b"%d" % number for number in range(50)]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(100)
    stats = cluster.run(cluster.admin.topic_stats(topic))
    assert stats["msgInCounter"] == 51
    assert stats["storageSize"] == 0
    assert stats["subscriptions"]["sub-0"]["msgOutCounter"] == 50
    assert stats["subscriptions"]["sub-0"]["msgBacklog"] == 0


@pytest.mark.parametrize(
    "kind",
    [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Failover],
    ids=lambda one: one.name,
)
def test_batches_of_every_subscription_type(client: pulsar.Client, kind: pulsar.ConsumerType) -> None:
    topic = f"{BEFORE}types-{kind.name}"
    consumers = [client.subscribe(topic, "sub", kind) for _ in range(2)]
    if kind == pulsar.ConsumerType.Failover:  # the change of the active one has settled when one gets something
        wait_for(lambda: is_heard(client, topic, consumers), "an active consumer")
    producer = client.create_producer(topic, batching_type=pulsar.BatchingType.KeyBased, batching_enabled=True)
    for number in range(100):
        producer.send_async(b"%d" % number, lambda result, message_id: None, partition_key=f"k{number % 10}")
    producer.flush()
    found: list[bytes] = []
    while len(found) < 100:
        for consumer in consumers:
            found += drained(consumer)
    assert sorted(found, key=int) == [b"%d" % number for number in range(100)]
    producer.close()


def is_heard(client: pulsar.Client, topic: str, consumers: list[pulsar.Consumer]) -> bool:
    producer = client.create_producer(topic)
    producer.send(b"?")
    producer.close()
    return any(drained(consumer) for consumer in consumers)


def drained(consumer: pulsar.Consumer) -> list[bytes]:
    found: list[bytes] = []
    while True:
        try:
            message = consumer.receive(50)
        except pulsar.Timeout:
            return found
        consumer.acknowledge(message)
        found.append(message.data())


def test_what_nobody_can_take_is_dropped_and_counted(cluster: BrokerCluster, client: pulsar.Client) -> None:
    topic = BEFORE + "dropped"
    consumer = client.subscribe(topic, "slow", receiver_queue_size=5)
    producer = client.create_producer(topic)
    for number in range(30):
        producer.send(b"%d" % number)
    assert topic_of(cluster, topic).subscriptions["slow"].messages_dropped == 25
    stats = cluster.run(cluster.admin.topic_stats(topic))
    assert stats["subscriptions"]["slow"]["msgDropCount"] == 25
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(5)] == [b"%d" % number for number in range(5)]
    producer.send(b"again")
    assert consumer.receive(RECEIVE_MS).data() == b"again"


def test_partitions_and_patterns(cluster: BrokerCluster, client: pulsar.Client) -> None:
    cluster.run(cluster.admin.create_topic(BEFORE + "many", 3))
    whole = client.subscribe(BEFORE + "many", "sub")
    pattern = client.subscribe(
        re.compile("public/default/many.*"),
        "pattern",
        regex_subscription_mode=pulsar.RegexSubscriptionMode.NonPersistentOnly,
    )
    producer = client.create_producer(BEFORE + "many")
    for number in range(30):
        producer.send(b"%d" % number)
    for consumer in (whole, pattern):
        found = {consumer.receive(RECEIVE_MS).data() for _ in range(30)}
        assert found == {b"%d" % number for number in range(30)}
    topics = cluster.run(cluster.admin.list_topics())
    assert {"name": BEFORE + "many", "partitions": 3} in topics
    cluster.run(cluster.admin.delete_topic(BEFORE + "many", force=True))
    assert not [topic for topic in cluster.run(cluster.admin.list_topics()) if "many" in topic["name"]]


def test_topics_are_listed_by_their_kind(client: pulsar.Client) -> None:
    client.create_producer(BEFORE + "kind-a").close()
    consumer = client.subscribe(
        re.compile("public/default/kind-.*"), "sub", regex_subscription_mode=pulsar.RegexSubscriptionMode.AllTopics
    )
    producer = client.create_producer(BEFORE + "kind-a")
    producer.send(b"a")
    assert consumer.receive(RECEIVE_MS).topic_name() == BEFORE + "kind-a"


def test_a_non_persistent_topic_outlives_its_broker(cluster: BrokerCluster, client: pulsar.Client) -> None:
    topic = BEFORE + "moves"
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"0")
    assert consumer.receive(RECEIVE_MS).data() == b"0"
    cluster.crash_and_restart(cluster.owner_of(topic))
    producer.send(b"while nobody listens yet, perhaps")

    def is_back() -> bool:
        producer.send(b"1")
        return bool(drained(consumer))

    wait_for(is_back, "the consumer to hear again")


async def test_our_own_client(cluster: BrokerCluster) -> None:
    async with AsyncClient(ClientOptions((cluster.brokers[-1].broker.service_url,))) as client:
        topic = BEFORE + "ours"
        consumer = await client.consumer(topic, "sub", type="shared").open()
        reader = await client.reader(topic, "latest").open()
        producer = client.producer(topic)
        await producer.send_many([b"%d" % number for number in range(10)])
        messages: list[Message] = []
        while len(messages) < 10:
            messages += await consumer.receive_many(10, 60)
        await consumer.ack_many(messages)
        assert [message.value for message in messages] == [b"%d" % number for number in range(10)]
        assert (await reader.receive(60)).value == b"0"
