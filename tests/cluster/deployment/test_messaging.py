"""Publishing and consuming on a whole cluster, while processes of it are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import heliograph
from heliograph.base.errors import BadRequestError, TopicExistsError, TopicNotFoundError
from tests.cluster.support.live_cluster import LiveCluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

IDLE_SECONDS = 60.0  # longer than any takeover


def received(client: heliograph.Client, topic: str, subscription: str, count: int) -> list[heliograph.Message]:
    """Consume and acknowledge until ``count`` different messages arrived, or no more arrive."""
    messages: dict[bytes, heliograph.Message] = {}
    with client.consumer(topic, subscription, initial_position="earliest") as consumer:
        while len(messages) < count:
            batch = consumer.receive_many(1000, IDLE_SECONDS)
            if not batch:
                break
            consumer.ack_many(batch)
            messages.update((message.value, message) for message in batch)
    return list(messages.values())


def publish_while(
    client: heliograph.Client, topic: str, disturb: Callable[[], object], count: int = 3_000
) -> list[bytes]:
    """Publish numbered batches, disturb the cluster half way, and return what was acknowledged."""
    acknowledged: list[bytes] = []
    with client.producer(topic, send_timeout_ms=120_000) as producer:
        for first in range(0, count, 50):
            if first == count // 2:
                disturbance = threading.Thread(target=disturb)
                disturbance.start()
            values = [b"%d" % number for number in range(first, first + 50)]
            producer.send_many(values)
            acknowledged += values
        disturbance.join()
    return acknowledged


@pytest.fixture
def client(cluster: LiveCluster) -> Iterator[heliograph.Client]:
    connected = heliograph.connect(namespace=cluster.namespace)
    yield connected
    connected.close()


def test_messages_come_out_in_the_order_in_which_they_went_in(
    cluster: LiveCluster, client: heliograph.Client, topic: str
) -> None:
    cluster.admin.create_topic(topic)
    values = [b"%d" % number for number in range(2_000)]
    with client.producer(topic) as producer:
        producer.send_many(values)
    messages = received(client, topic, "all", len(values))
    assert [message.value for message in messages] == values  # I12
    stats = cluster.admin.topic_stats(topic)
    assert stats["subscriptions"]["all"]["msgBacklog"] == 0


def test_a_confirmed_acknowledgement_outlives_the_broker(
    cluster: LiveCluster, client: heliograph.Client, topic: str
) -> None:
    cluster.admin.create_topic(topic)
    with client.producer(topic) as producer:
        producer.send_many([b"%d" % number for number in range(100)])
    with client.consumer(topic, "half", initial_position="earliest") as consumer:
        consumer.ack_many([consumer.receive(60) for _ in range(50)])
    owner = cluster.admin.lookup(topic)["actor_name"]
    cluster.wait_back(owner, cluster.sigkill(owner))
    rest = received(client, topic, "half", 50)
    assert [int(message.value) for message in rest] == list(range(50, 100))  # I11


def test_a_killed_bookie_costs_no_message(cluster: LiveCluster, client: heliograph.Client, topic: str) -> None:
    cluster.admin.create_topic(topic)
    victims: list[int] = []
    acknowledged = publish_while(client, topic, lambda: victims.append(cluster.sigkill("bookie-2")))
    assert {message.value for message in received(client, topic, "all", len(acknowledged))} == set(acknowledged)  # I1
    cluster.wait_back("bookie-2", victims[0])


def test_another_broker_takes_over_and_no_message_is_lost(
    cluster: LiveCluster, client: heliograph.Client, topic: str
) -> None:
    cluster.admin.create_topic(topic)
    owner = cluster.admin.lookup(topic)["actor_name"]
    victims: list[int] = []
    acknowledged = publish_while(client, topic, lambda: victims.append(cluster.sigkill(owner)))
    messages = received(client, topic, "all", len(acknowledged))
    assert {message.value for message in messages} == set(acknowledged)  # I1
    numbers = [int(message.value) for message in messages]
    assert numbers == sorted(numbers)
    cluster.wait_back(owner, victims[0])


def test_publishing_survives_the_metadata_store(cluster: LiveCluster, client: heliograph.Client, topic: str) -> None:
    cluster.admin.create_topic(topic)
    victims: list[int] = []
    acknowledged = publish_while(client, topic, lambda: victims.append(cluster.sigkill("metadata")))
    cluster.wait_back("metadata", victims[0])
    assert {message.value for message in received(client, topic, "all", len(acknowledged))} == set(acknowledged)  # I1
    cluster.admin.create_topic(f"{topic}-after")
    assert any(topic["name"].endswith("-after") for topic in cluster.admin.list_topics())


def test_the_gateway_comes_back_at_its_address(cluster: LiveCluster) -> None:
    import httpx

    url = cluster.state.gateway_url
    assert httpx.get(f"{url}/docs", timeout=60).status_code == 200
    cluster.wait_back("gateway", cluster.sigkill("gateway"))
    wait_for(lambda: _answers(str(cluster.call("gateway", "start"))), 120, "the gateway does not answer")


def _answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/docs", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def test_topics_are_administered_through_any_broker(cluster: LiveCluster, topic: str) -> None:
    admin = cluster.admin
    admin.create_topic(topic, partitions=3)
    assert admin.partitions(topic) == 3
    with pytest.raises(TopicExistsError):
        admin.create_topic(topic)
    admin.create_subscription(f"{topic}-partition-0", "s", "earliest")
    assert admin.subscriptions(f"{topic}-partition-0") == ["s"]
    admin.delete_topic(topic, force=True)
    with pytest.raises(TopicNotFoundError):
        admin.topic_stats(topic)
    with pytest.raises(BadRequestError):
        admin.create_topic("bad//name")


def test_the_raw_actors_answer(cluster: LiveCluster, topic: str) -> None:
    cluster.admin.create_topic(topic)
    ids = cluster.call("broker-1", "admin", "publish", {"topic": topic, "payloads": [b"a", b"b"]})
    assert len(ids) == 2
    ranges = cluster.call("broker-2", "admin", "ledger_ranges", {"topic": topic})
    assert sum(found["last_entry_id"] - found["first_entry_id"] + 1 for found in ranges) >= 1
    assert cluster.call("bookie-1", "statistics")
