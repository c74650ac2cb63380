"""Administration of subscriptions through any broker, and expiry."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest

from heliograph.base import errors
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import iterate_batch
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster, wait_for

RECEIVE_MS = 60_000
CLUSTER: dict[str, Any] = {"brokers": 2}


def call(cluster: BrokerCluster, method: str, broker: int = 0, **arguments: Any) -> Any:
    return cluster.run(cluster.brokers[broker].broker.admin.run(f"cursors.{method}", arguments))


def publish(cluster: BrokerCluster, topic: str, *entries: list[bytes]) -> list[str]:
    """Publish each list as one entry; return the ids of all messages."""
    return [one for payloads in entries for one in cluster.run(cluster.admin.publish(topic, payloads))]


def backlog(cluster: BrokerCluster, topic: str, name: str = "s") -> int:
    found: int = cluster.run(cluster.admin.topic_stats(topic))["subscriptions"][name]["msgBacklog"]
    return found


@pytest.mark.parametrize("broker", [0, 1])
def test_skip_and_expire(cluster: BrokerCluster, broker: int) -> None:
    topic = f"skip-{broker}"
    cluster.run(cluster.admin.create_topic(topic))
    cluster.run(cluster.admin.create_subscription(topic, "s"))
    ids = publish(cluster, topic, *[[b"%d" % n] for n in range(10)])
    call(cluster, "skip", broker, topic=topic, subscription="s", count=3)
    assert backlog(cluster, topic) == 7
    place = ":".join(ids[5].split(":")[:2])
    assert call(cluster, "expire_to", broker, topic=topic, subscription="s", message_id=place, excluded=True) == 2
    assert call(cluster, "expire_to", broker, topic=topic, subscription="s", message_id=place) == 1
    assert backlog(cluster, topic) == 4
    assert call(cluster, "expire", broker, topic=topic, subscription="s", seconds=3_600) == 0

    def expire_everything() -> bool:
        call(cluster, "expire", broker, topic=topic, subscription=None, seconds=0)
        return backlog(cluster, topic) == 0

    wait_for(expire_everything, "a clock to move")
    assert cluster.run(cluster.admin.topic_stats(topic))["subscriptions"]["s"]["totalMsgExpired"] == 7
    publish(cluster, topic, [b"x"])
    call(cluster, "skip_all", broker, topic=topic, subscription="s")
    assert backlog(cluster, topic) == 0


def test_peek_and_look_up_messages_one_by_one(cluster: BrokerCluster) -> None:
    cluster.run(cluster.admin.create_topic("peek"))
    cluster.run(cluster.admin.create_subscription("peek", "s"))
    with cluster.client() as client:
        producer = client.create_producer("peek", compression_type=pulsar.CompressionType.LZ4)
        producer.send(b"one", properties={"a": "b"}, partition_key="k", event_timestamp=77)
    ids = publish(cluster, "peek", [b"two", b"three"])
    shown = call(cluster, "peek", 1, topic="peek", subscription="s", count=5)
    assert [one["payload"] for one in shown] == [b"one", b"two", b"three"]
    assert shown[0]["properties"] == {"a": "b"}
    assert (shown[0]["key"], shown[0]["event_time_ms"], shown[0]["batch_size"]) == ("k", 77, 0)
    assert [one["message_id"] for one in shown[1:]] == ids
    assert call(cluster, "peek", topic="peek", subscription="s", count=2) == shown[:2]
    assert backlog(cluster, "peek") == 2
    ledger_id, entry_id = (int(part) for part in ids[0].split(":")[:2])
    assert call(cluster, "message", topic="peek", ledger_id=ledger_id, entry_id=entry_id) == shown[1:]
    assert call(cluster, "examine", topic="peek", initial="earliest", number=1) == shown[:1]
    assert call(cluster, "examine", topic="peek", initial="latest", number=1) == shown[1:]
    for found in (
        call(cluster, "peek", 1, topic="peek", subscription="s", count=2, as_entry=True),
        call(cluster, "message", topic="peek", ledger_id=ledger_id, entry_id=entry_id, as_entry=True),
        call(cluster, "examine", topic="peek", initial="latest", number=1, as_entry=True),
    ):
        (whole,) = found
        metadata = pb.MessageMetadata.FromString(whole["metadata"])
        assert [value for _, value in iterate_batch(metadata, whole["payload"])] == [b"two", b"three"]
    assert call(cluster, "peek", topic="peek", subscription="s", count=1, as_entry=True)[0]["payload"] == b"one"
    assert call(cluster, "peek", topic="peek", subscription="s", count=3, as_entry=True) == []
    assert call(cluster, "last_message_id", topic="peek") == ids[-1]
    assert call(cluster, "message_id_at", topic="peek", time_ms=0) == shown[0]["message_id"]
    assert call(cluster, "message_id_at", topic="peek", time_ms=1 << 50).startswith(f"{ledger_id}:{entry_id}")
    for method, arguments in (
        ("examine", {"initial": "latest", "number": 3}),
        ("message", {"ledger_id": ledger_id, "entry_id": 99}),
    ):
        with pytest.raises(errors.NotFoundError):
            call(cluster, method, topic="peek", **arguments)


def test_reset_moves_consumers_too(cluster: BrokerCluster) -> None:
    cluster.run(cluster.admin.create_topic("reset"))
    cluster.run(cluster.admin.create_subscription("reset", "s"))
    ids = publish(cluster, "reset", [b"0"], [b"1", b"2", b"3"], [b"4"])
    with cluster.client() as client:
        consumer = client.subscribe("reset", "s", receiver_queue_size=2, batch_index_ack_enabled=True)

        def next_message() -> bytes:
            message = consumer.receive(RECEIVE_MS)
            consumer.acknowledge(message)
            return bytes(message.data())

        def await_message(expected: bytes) -> None:
            """Receive until the message comes: messages in the client's queue from before may come first."""
            while consumer.receive(RECEIVE_MS).data() != expected:
                pass

        assert [next_message() for _ in range(5)] == [b"%d" % n for n in range(5)]
        for place, excluded, expected in (
            ("earliest", False, b"0"),
            (ids[2], False, b"2"),
            (ids[2], True, b"3"),
            (ids[3], True, b"4"),
            (":".join(ids[4].split(":")[:2]), False, b"4"),
        ):
            call(cluster, "reset", 1, topic="reset", subscription="s", to=place, excluded=excluded)
            await_message(expected)
        call(cluster, "reset", 1, topic="reset", subscription="s", to=0)
        await_message(b"0")
        call(cluster, "reset", topic="reset", subscription="s", to="latest")
        wait_for(lambda: backlog(cluster, "reset") == 0, "the reset")
        publish(cluster, "reset", [b"new"])
        await_message(b"new")


def test_properties_survive_a_new_owner(cluster: BrokerCluster) -> None:
    cluster.run(cluster.admin.create_topic("attached", 2))
    cluster.run(cluster.admin.create_subscription("attached", "s"))
    call(cluster, "set_properties", topic="attached", subscription="s", properties={"a": "b", "c": "d"})
    call(cluster, "set_properties", topic="attached", subscription="s", properties={"a": "z"})
    cluster.run(cluster.admin.unload_topic("attached"))
    assert call(cluster, "properties", 1, topic="attached", subscription="s") == {"a": "z"}
    stats = cluster.run(cluster.admin.topic_stats("attached-partition-0"))
    assert stats["subscriptions"]["s"]["subscriptionProperties"] == {"a": "z"}


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("skip", {"subscription": "s", "count": -1}, errors.BadRequestError),
        ("skip", {"subscription": "s", "count": True}, errors.BadRequestError),
        ("skip", {"subscription": "none", "count": 1}, errors.SubscriptionNotFoundError),
        ("skip", {"subscription": "s"}, errors.BadRequestError),
        ("rewind", {}, errors.BadRequestError),
        ("peek", {"subscription": "s", "count": 1_001}, errors.BadRequestError),
        ("peek", {"subscription": "none"}, errors.SubscriptionNotFoundError),
        ("examine", {"initial": "middle"}, errors.BadRequestError),
        ("reset", {"subscription": "s", "to": "soon"}, errors.InvalidMessageIdError),
        ("reset", {"subscription": "none", "to": 1}, errors.SubscriptionNotFoundError),
        ("set_properties", {"subscription": "s", "properties": {"heliograph.delayed": "1"}}, errors.BadRequestError),
        ("set_properties", {"subscription": "s", "properties": {"a": 1}}, errors.BadRequestError),
    ],
)
def test_bad_input(cluster: BrokerCluster, method: str, arguments: dict[str, Any], error: type[Exception]) -> None:
    with contextlib.suppress(errors.TopicExistsError):
        cluster.run(cluster.admin.create_topic("bad"))
        cluster.run(cluster.admin.create_subscription("bad", "s"))
    for broker in (0, 1):
        with pytest.raises(error):
            call(cluster, method, broker, topic="bad", **arguments)


def test_what_needs_one_partition_says_so(cluster: BrokerCluster) -> None:
    cluster.run(cluster.admin.create_topic("parts", 2))
    cluster.run(cluster.admin.create_subscription("parts", "s"))
    publish(cluster, "parts", [b"%d" % n for n in range(8)])
    for method, arguments in (("skip", {"count": 1}), ("peek", {}), ("expire_to", {"message_id": "1:1"})):
        with pytest.raises(errors.BadRequestError):
            call(cluster, method, topic="parts", subscription="s", **arguments)
    call(cluster, "skip_all", topic="parts", subscription="s")
    assert backlog(cluster, "parts") == 0
    call(cluster, "reset", topic="parts", subscription="s", to="earliest")
    assert backlog(cluster, "parts") > 0


def test_old_messages_and_unused_subscriptions_end(tmp_path: Path) -> None:
    """Time to live, and the expiration of subscriptions, by housekeeping."""
    with (
        broker_cluster(tmp_path, message_ttl_seconds=1, subscription_expiration_seconds=2) as cluster,
        cluster.client() as client,
    ):
        client.subscribe("aging", "used")
        client.subscribe("aging", "unused").close()
        producer = client.create_producer("aging")
        for n in range(20):
            producer.send(b"%d" % n)
        wait_for(lambda: backlog(cluster, "aging", "used") == 0, "the messages to expire")
        stats = cluster.run(cluster.admin.topic_stats("aging"))["subscriptions"]["used"]
        assert stats["totalMsgExpired"] == 20
        wait_for(lambda: cluster.run(cluster.admin.subscriptions("aging")) == ["used"], "the other one to be deleted")


def test_expiry_reads_little_of_a_long_backlog(tmp_path: Path) -> None:
    with broker_cluster(tmp_path) as cluster, cluster.client() as client:
        client.subscribe("long", "s").close()
        producer = client.create_producer("long", block_if_queue_full=True)
        for n in range(2_000):
            producer.send_async(b"%d" % n, lambda result, _: None)
        producer.flush()
        topic = cluster.owner_of("long").broker.topics.find(TopicName.parse("long"))
        assert topic is not None
        reads: list[int] = []
        whole = topic.reader.entry

        async def counted(index: int) -> Any:
            reads.append(index)
            return await whole(index)

        topic.reader.entry = counted  # type: ignore[method-assign]
        sent_ms = time.time_ns() // 1_000_000
        wait_for(lambda: time.time_ns() // 1_000_000 > sent_ms, "the clock to move")
        assert call(cluster, "expire", topic="long", subscription="s", seconds=0) == 2_000
        assert len(reads) < 30
