"""Administration through any broker, on real bookies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pulsar
import pytest

from heliograph.actors.broker.admin.admin import AdminService
from heliograph.base import errors
from heliograph.metadata.model import BrokerRegistration
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import encode_command
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster, wait_for

RECEIVE_MS = 60_000
CLUSTER: dict[str, Any] = {"brokers": 2}


def test_create_list_delete(cluster: BrokerCluster) -> None:
    first, second = (running.broker.admin for running in cluster.brokers)
    cluster.run(first.create_topic("made"))
    cluster.run(second.create_topic("made-parts", 3, {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 1}))
    full = "persistent://public/default/made"
    assert {"name": full, "partitions": 0} in cluster.run(second.list_topics())
    assert {"name": f"{full}-parts", "partitions": 3} in cluster.run(first.list_topics())
    assert cluster.run(first.partitions("made-parts")) == 3
    assert cluster.run(first.partitions("made")) == 0
    for admin in (first, second):
        with pytest.raises(errors.TopicExistsError):
            cluster.run(admin.create_topic("made", 4))
        with pytest.raises(errors.TopicExistsError):
            cluster.run(admin.create_topic("made-parts"))
    internal = cluster.run(first.topic_internal_stats("made-parts-partition-1"))
    assert [len(e["bookies"]) for e in internal["ledgers"][-1]["ensembles"]] == [2]
    cluster.run(second.delete_topic("made"))
    cluster.run(first.delete_topic("made-parts"))
    left = [found["name"] for found in cluster.run(first.list_topics())]
    assert not any(name == full or name.startswith(f"{full}-parts") for name in left)
    with pytest.raises(errors.TopicNotFoundError):
        cluster.run(first.delete_topic("made"))


@pytest.mark.parametrize(
    ("call", "error", "field"),
    [
        (lambda a: a.create_topic("x/y"), errors.InvalidTopicNameError, "topic"),
        (lambda a: a.create_topic("no/body/x"), errors.NamespaceNotFoundError, "namespace"),
        (lambda a: a.create_topic("x", -1), errors.BadRequestError, "partitions"),
        (lambda a: a.create_topic("x", 0, {"copies": 3}), errors.BadRequestError, "persistence"),
        (lambda a: a.create_topic("x", 0, {"ack_quorum": "2"}), errors.InvalidQuorumError, "persistence"),
        (lambda a: a.create_topic("x", 0, {"ack_quorum": 4}), errors.InvalidQuorumError, None),
        (
            lambda a: a.create_topic("x", 0, {"ensemble_size": 9, "write_quorum": 9, "ack_quorum": 9}),
            errors.TooFewBookiesError,
            "ack_quorum",
        ),
        (lambda a: a.partitions("absent"), errors.TopicNotFoundError, "topic"),
        (lambda a: a.topic_stats("absent"), errors.TopicNotFoundError, "topic"),
        (lambda a: a.ledger_ranges("absent"), errors.TopicNotFoundError, "topic"),
        (lambda a: a.list_topics("public"), errors.BadRequestError, "namespace"),
        (lambda a: a.publish("x", []), errors.BadRequestError, "payloads"),
        (lambda a: a.publish("x", [b"a", "b"]), errors.BadRequestError, "payloads"),
        (lambda a: a.publish("x", [b"y" * (6 << 20)]), errors.MessageTooLargeError, "payloads"),
        (lambda a: a.create_subscription("made-sub", "s", "soon"), errors.InvalidMessageIdError, "messageId"),
    ],
)
def test_bad_input(
    cluster: BrokerCluster,
    call: Callable[[AdminService], Awaitable[object]],
    error: type[errors.HeliographError],
    field: str | None,
) -> None:
    for running in cluster.brokers:
        with pytest.raises(error) as caught:
            cluster.run(call(running.broker.admin))  # type: ignore[arg-type]
        assert caught.type is error
        if field is not None:
            assert caught.value.field == field


def test_publish_and_ranges_through_any_broker(cluster: BrokerCluster) -> None:
    for running in cluster.brokers:
        admin = running.broker.admin
        ids = cluster.run(admin.publish("raw", [b"a", b"b", b"c"], [None, "k", None]))
        assert [one.split(":")[2:] for one in ids] == [["-1", "0"], ["-1", "1"], ["-1", "2"]]
    ranges = cluster.run(cluster.admin.ledger_ranges("raw"))
    assert sum(one["last_entry_id"] - one["first_entry_id"] + 1 for one in ranges) == 2
    assert all(one["bytes"] > 0 for one in ranges)
    with cluster.client() as client:
        reader = client.create_reader("raw", pulsar.MessageId.earliest)
        messages = [reader.read_next(RECEIVE_MS) for _ in range(6)]
    assert [message.data() for message in messages] == [b"a", b"b", b"c"] * 2
    assert messages[1].partition_key() == "k"


def test_publish_to_partitions_keeps_keys_together(cluster: BrokerCluster) -> None:
    cluster.run(cluster.admin.create_topic("raw-parts", 4))
    keys = [f"k{n % 9}" for n in range(500)]
    ids = cluster.run(cluster.admin.publish("raw-parts", [b"%d" % n for n in range(500)], keys))
    partitions = {key: {one.split(":")[2] for one, k in zip(ids, keys, strict=True) if k == key} for key in keys}
    assert all(len(found) == 1 for found in partitions.values())
    with pytest.raises(errors.BadRequestError):
        cluster.run(cluster.admin.ledger_ranges("raw-parts"))


def test_any_broker_tells_a_plan_of_partitions_that_several_own(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (running.broker.admin for running in cluster.brokers)
    cluster.run(first.create_topic("planned", 8))
    cluster.run(first.publish("planned", [b"x"] * 40, [f"k{n}" for n in range(40)]))
    cluster.run(first.publish("planned-whole", [b"x"]))
    names = [f"persistent://public/default/planned-partition-{n}" for n in range(8)]
    owners: dict[str, str] = {}

    async def in_turn(path: str, live: Mapping[str, BrokerRegistration]) -> str:
        return owners.setdefault(path, sorted(live)[len(owners) % 2])

    for running in cluster.brokers:  # by load, a busy machine may give all bundles to the other broker
        monkeypatch.setattr(running.broker.ownership, "choose", in_turn)
    cluster.run(first.brokers.unload_namespace("public/default"))
    assert len({cluster.run(first.lookup(name))["service_url"] for name in names}) == 2
    for topic, parts in (("planned", names), ("planned-whole", ["persistent://public/default/planned-whole"])):
        for admin in (first, second):
            told = cluster.run(admin.read_plan(topic))
            assert [one["topic"] for one in told] == parts
            for one in told:
                ids = [row["ledger_id"] for row in one["rows"]["ledgers"] if row["entries"]]
                access = cluster.run(admin.read_access(one["topic"], ids))
                assert one["rows"] == cluster.run(admin.topic_ledgers(one["topic"]))
                assert {**one["access"], "expires_ms": 0} == {**access, "expires_ms": 0}
                assert len(access["addresses"]) == 3
    with pytest.raises(errors.TopicNotFoundError):
        cluster.run(second.read_plan("absent"))


def test_subscriptions(cluster: BrokerCluster) -> None:
    first, second = (running.broker.admin for running in cluster.brokers)
    ids = cluster.run(first.publish("subs", [b"0"])) + cluster.run(first.publish("subs", [b"1"]))
    cluster.run(second.create_subscription("subs", "late"))
    cluster.run(first.create_subscription("subs", "early", "earliest"))
    cluster.run(first.create_subscription("subs", "after", ":".join(ids[0].split(":")[:2])))
    assert cluster.run(second.subscriptions("subs")) == ["after", "early", "late"]
    with pytest.raises(errors.SubscriptionExistsError):
        cluster.run(second.create_subscription("subs", "late"))
    stats = cluster.run(first.topic_stats("subs"))["subscriptions"]
    assert {name: one["msgBacklog"] for name, one in stats.items()} == {"late": 0, "early": 2, "after": 1}
    with cluster.client() as client:
        consumer = client.subscribe("subs", "early")
        assert consumer.receive(RECEIVE_MS).data() == b"0"
        with pytest.raises(errors.ConflictError):
            cluster.run(second.delete_subscription("subs", "early"))
        with pytest.raises(errors.TopicBusyError):
            cluster.run(second.delete_topic("subs"))
    cluster.run(second.delete_subscription("subs", "early", force=True))
    with pytest.raises(errors.SubscriptionNotFoundError):
        cluster.run(first.delete_subscription("subs", "early"))
    cluster.run(first.delete_topic("subs", force=True))


def test_stats_have_pulsars_names(cluster: BrokerCluster) -> None:
    cluster.run(cluster.admin.create_topic("stats", 2))
    with cluster.client() as client:
        consumer = client.subscribe("stats", "sub", pulsar.ConsumerType.Shared)
        producer = client.create_producer("stats")
        for n in range(20):
            producer.send(b"x" * 100, partition_key=str(n))
        for _ in range(10):
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
        wait_for(
            lambda: cluster.run(cluster.admin.topic_stats("stats"))["subscriptions"]["sub"]["msgBacklog"] == 10,
            "acks to arrive",
        )
        stats = cluster.run(cluster.admin.topic_stats("stats"))
    assert stats["msgInCounter"] == 20
    assert stats["metadata"] == {"partitions": 2}
    assert sorted(stats["partitions"]) == [f"persistent://public/default/stats-partition-{n}" for n in (0, 1)]
    assert stats["subscriptions"]["sub"]["type"] == "Shared"
    assert len(stats["publishers"]) == 2
    one = next(iter(stats["partitions"].values()))
    assert one["publishers"][0]["clientVersion"].startswith("Pulsar-CPP")
    internal = cluster.run(cluster.admin.topic_internal_stats("stats-partition-0"))
    assert internal["ledgers"][-1]["ensembles"][0]["bookies"]
    assert internal["cursors"]["sub"]["markDeletePosition"]
    json.dumps([stats, internal])  # plain data
    statistics = cluster.owner_of("stats-partition-0").broker.statistics()
    assert statistics["messages_in"] >= 1
    json.dumps(statistics)


def test_unload_is_invisible_to_clients(cluster: BrokerCluster) -> None:
    with cluster.client() as client:
        consumer = client.subscribe("unload", "sub")
        producer = client.create_producer("unload")
        for n in range(3):
            producer.send(b"%d" % n)
            cluster.run(cluster.admin.unload_topic("unload"))
        numbers: list[int] = []
        while 2 not in numbers:
            numbers.append(int(consumer.receive(RECEIVE_MS).data()))
        assert list(dict.fromkeys(numbers)) == [0, 1, 2]


def test_retention_gives_ledgers_back(tmp_path: Path) -> None:
    with (
        broker_cluster(tmp_path, brokers=1, ledger_entries_max=50, retention_seconds=0, retention_bytes=0) as cluster,
        cluster.client() as client,
    ):
        consumer = client.subscribe("trim", "sub")
        producer = client.create_producer("trim")
        for n in range(220):
            producer.send(b"%d" % n)
        assert len(cluster.run(cluster.admin.ledger_ranges("trim"))) > 3  # I14: the cursor holds them
        for n in range(220):
            message = consumer.receive(RECEIVE_MS)
            assert message.data() == b"%d" % n
            consumer.acknowledge(message)
        wait_for(lambda: len(cluster.run(cluster.admin.ledger_ranges("trim"))) <= 1, "ledgers to be deleted")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">II", 1 << 30, 1 << 20),
        struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff",
        struct.pack(">II", 6, 2) + b"\x08\x12",  # PING before CONNECT
        b"",
    ],
)
def test_garbage_ends_only_its_own_connection(cluster: BrokerCluster, garbage: bytes) -> None:
    broker = cluster.brokers[0].broker
    port = int(broker.service_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        peer.sendall(garbage)
        if not garbage:
            peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1_000) == b""
    with cluster.client() as client:
        client.create_producer("after-garbage").send(b"x")


def test_a_port_in_use_is_named(cluster: BrokerCluster) -> None:
    port = int(cluster.brokers[0].broker.service_url.rpartition(":")[2])
    with pytest.raises(errors.ResourceError) as caught:
        cluster.start_broker("third", port=port)
    assert caught.value.field == "port"


async def test_a_client_that_never_reads_harms_nobody(cluster: BrokerCluster) -> None:
    """Its socket fills up, then its consumer gets no more (I15); others go on."""

    def publish_much() -> None:
        with cluster.client() as client:
            other = client.subscribe("deaf", "other")
            producer = client.create_producer("deaf", block_if_queue_full=True)
            for _ in range(60):
                producer.send_async(b"x" * (1 << 20), lambda result, _: None)
            producer.flush()
            for _ in range(60):
                other.receive(RECEIVE_MS)
            stats = cluster.run(cluster.admin.topic_stats("deaf"))["subscriptions"]["s"]
            assert 0 < stats["bytesOutCounter"] < 20 << 20

    url = cluster.run(cluster.admin.lookup("deaf"))["service_url"]
    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))

    def send(**fields: object) -> None:
        writer.write(encode_command(pb.BaseCommand(**fields)))  # type: ignore[arg-type]

    cluster.run(cluster.admin.create_subscription("deaf", "other"))
    connect = pb.CommandConnect(client_version="deaf", protocol_version=19)
    send(type=pb.BaseCommand.CONNECT, connect=connect)
    subscribe = pb.CommandSubscribe(
        topic="deaf", subscription="s", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1
    )
    send(type=pb.BaseCommand.SUBSCRIBE, subscribe=subscribe)
    await asyncio.to_thread(wait_for, lambda: "s" in cluster.run(cluster.admin.subscriptions("deaf")), "it")
    send(type=pb.BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=1 << 30))
    await writer.drain()
    await asyncio.to_thread(publish_much)
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def test_small_budgets_slow_clients_down_and_lose_nothing(tmp_path: Path) -> None:
    """The socket of a client that publishes too much is not read for a while (I15)."""

    async def pending() -> object:  # on the servers' loop: the last receipt is sent just before its bytes are settled
        return running.broker.statistics()["publish_bytes_pending"]

    with broker_cluster(tmp_path, brokers=0) as cluster:
        running = cluster.start_broker(
            "tight", connection_publish_bytes_max=64 << 10, publish_bytes_max=128 << 10, cache_bytes=1 << 20
        )
        with cluster.client() as one, cluster.client() as other:
            results: list[pulsar.Result] = []
            producers = [client.create_producer("tight", block_if_queue_full=True) for client in (one, other)]
            for _ in range(500):
                for producer in producers:
                    producer.send_async(b"x" * 10_000, lambda result, _: results.append(result))
            for producer in producers:
                producer.flush()
            assert results == [pulsar.Result.Ok] * 1_000
            assert cluster.run(pending()) == 0
            reader = one.create_reader("tight", pulsar.MessageId.earliest)
            for _ in range(1_000):
                assert len(reader.read_next(RECEIVE_MS).data()) == 10_000


@pytest.mark.parametrize(
    ("topic", "partitions"),
    [("kept", 0), ("kept-parts", 2), ("non-persistent://public/default/kept", 0)],
)
def test_properties_of_topics_survive_a_new_owner(cluster: BrokerCluster, topic: str, partitions: int) -> None:
    first, second = (running.broker.admin for running in cluster.brokers)
    cluster.run(first.create_topic(topic, partitions, properties={"team": "air", "stage": "new"}))
    cluster.run(second.update_topic_properties(topic, {"stage": "old", "more": "1"}))
    cluster.run(first.unload_topic(topic))
    assert cluster.run(first.topic_properties(topic)) == {"team": "air", "stage": "old", "more": "1"}
    cluster.run(first.remove_topic_properties(topic, ["more", "unknown"]))
    assert cluster.run(second.topic_properties(topic)) == {"team": "air", "stage": "old"}
    with pytest.raises(errors.BadRequestError):
        cluster.run(first.update_topic_properties(topic, {"large": "x" * (64 << 10)}))
    with pytest.raises(errors.TopicNotFoundError):
        cluster.run(first.topic_properties("missing"))


def test_a_subscription_is_created_with_properties(cluster: BrokerCluster) -> None:
    admin = cluster.admin
    cluster.run(admin.create_topic("described", 2))
    cluster.run(admin.create_subscription("described", "s", properties={"a": "b"}))
    assert cluster.run(admin.cursors.properties("described", "s")) == {"a": "b"}
    cluster.run(admin.unload_topic("described"))
    assert cluster.run(admin.cursors.properties("described", "s")) == {"a": "b"}


@pytest.mark.parametrize("partitions", [0, 2])
def test_truncation_deletes_everything_that_was_published(cluster: BrokerCluster, partitions: int) -> None:
    admin, topic = cluster.admin, f"cut-{partitions}"
    cluster.run(admin.create_topic(topic, partitions))
    cluster.run(admin.create_subscription(topic, "s", "earliest"))
    for _ in range(4):
        cluster.run(admin.publish(topic, [b"x" * 10]))
    assert cluster.run(admin.trim_topic(topic)) == 0  # retention keeps all, and the subscription needs it
    assert cluster.run(admin.truncate_topic(topic)) >= 1
    for part in TopicName.parse(topic).partitions(partitions):
        stats = cluster.run(admin.topic_stats(str(part)))
        assert (stats["storageSize"], stats["subscriptions"]["s"]["msgBacklog"]) == (0, 0)
    cluster.run(admin.publish(topic, [b"after"]))
    assert cluster.run(admin.topic_stats(topic))["subscriptions"]["s"]["msgBacklog"] == 1
    with pytest.raises(errors.UnsupportedError):
        cluster.run(admin.truncate_topic("non-persistent://public/default/cut"))


def test_the_compacted_form_is_truncated_too(cluster: BrokerCluster) -> None:
    admin, topic = cluster.admin, "cut-compacted"
    cluster.run(admin.create_topic(topic))
    cluster.run(admin.publish(topic, [b"x"], ["k"]))
    cluster.run(admin.compact_topic(topic))
    while cluster.run(admin.compaction_status(topic))["status"] == "RUNNING":
        pass
    cluster.run(admin.truncate_topic(topic))
    assert cluster.run(admin.topic_stats(topic))["storageSize"] == 0


def test_records_are_told_without_loading_the_topic(cluster: BrokerCluster) -> None:
    admin = cluster.admin
    cluster.run(admin.create_topic("recorded", properties={"a": "b"}))
    cluster.run(admin.create_subscription("recorded", "s/x", properties={"c": "d"}))
    found = cluster.run(admin.topic_record("recorded"))
    assert found["properties"] == {"a": "b"}
    assert found["cursors"]["s/x"]["properties"] == {"c": "d"}
    assert [ledger["entries"] for ledger in found["ledgers"]] == [0]
    with pytest.raises(errors.TopicNotFoundError):
        cluster.run(admin.topic_record("missing"))


def test_backlogs_are_measured(cluster: BrokerCluster) -> None:
    admin = cluster.admin
    cluster.run(admin.create_topic("measured"))
    cluster.run(admin.create_subscription("measured", "s", "earliest"))
    ids = [cluster.run(admin.publish("measured", [b"x" * 100] * 3))[0] for _ in range(4)]
    places = [":".join(one.split(":")[:2]) for one in ids]
    whole = cluster.run(admin.cursors.backlog_size("measured", places[0]))
    assert whole == cluster.run(admin.topic_stats("measured"))["storageSize"] > 1_200
    assert cluster.run(admin.cursors.backlog_size("measured", places[2])) == whole // 2
    found = cluster.run(admin.cursors.analyze_backlog("measured", "s"))
    assert found == {"entries": 4, "messages": 12, "first": places[0], "last": places[3], "is_cut": False}
    cluster.run(admin.cursors.skip("measured", "s", 1))
    found = cluster.run(admin.cursors.analyze_backlog("measured", "s"))
    assert (found["entries"], found["first"]) == (3, places[1])
    found = cluster.run(admin.cursors.analyze_backlog("measured", "s", places[3]))
    assert (found["entries"], found["first"], found["last"]) == (1, places[3], places[3])
    cluster.run(admin.cursors.skip_all("measured", "s"))
    found = cluster.run(admin.cursors.analyze_backlog("measured", "s"))
    assert (found["entries"], found["first"], found["last"]) == (0, None, None)


def test_subscriptions_of_a_whole_namespace_or_bundle(cluster: BrokerCluster) -> None:
    admin = cluster.admin
    cluster.run(admin.namespaces.create("public/cleared", 4))
    topics = [f"public/cleared/t{number}" for number in range(6)]
    for topic in topics:
        cluster.run(admin.create_topic(topic))
        for name in ("s", "other"):
            cluster.run(admin.create_subscription(topic, name, "earliest"))
        cluster.run(admin.publish(topic, [b"x"]))

    def backlogs(name: str) -> list[int]:
        return [cluster.run(admin.topic_stats(topic))["subscriptions"][name]["msgBacklog"] for topic in topics]

    bundle = cluster.run(admin.bundle_of(topics[0]))
    inside = [cluster.run(admin.bundle_of(topic)) == bundle for topic in topics]
    assert cluster.run(admin.cursors.clear_namespace("public/cleared", bundle, "s")) == sum(inside)
    assert backlogs("s") == [0 if is_inside else 1 for is_inside in inside]
    assert backlogs("other") == [1] * 6
    assert cluster.run(admin.cursors.clear_namespace("public/cleared")) == 12
    assert backlogs("s") == backlogs("other") == [0] * 6
    assert cluster.run(admin.cursors.unsubscribe_namespace("public/cleared", "s", bundle)) == sum(inside)
    assert cluster.run(admin.cursors.unsubscribe_namespace("public/cleared", "s")) == 6 - sum(inside)
    assert [cluster.run(admin.subscriptions(topic)) for topic in topics] == [["other"]] * 6
    with pytest.raises(errors.NotFoundError):
        cluster.run(admin.cursors.clear_namespace("public/cleared", "0x00000000_0x10000000"))
    with pytest.raises(errors.NamespaceNotFoundError):
        cluster.run(admin.cursors.clear_namespace("public/missing"))


def test_brokers_tell_what_they_serve_and_run_with(cluster: BrokerCluster) -> None:
    admin = cluster.admin
    cluster.run(admin.create_topic("served"))
    cluster.run(admin.topic_stats("served"))
    owner = cluster.run(admin.lookup("served"))["broker_id"]
    bundle = cluster.run(admin.bundle_of("served"))
    for running in cluster.brokers:
        asked = running.broker.admin.brokers
        assert bundle in cluster.run(asked.owned(owner))["public/default"]
        assert cluster.run(asked.topics(owner))["persistent://public/default/served"] == bundle
        settings = cluster.run(asked.configuration(owner))
        assert settings["broker_id"] == owner
        assert "ledger.request_timeout_ms" in settings
        assert not any("secret" in name for name in settings if not name.endswith("_file"))
        assert cluster.run(asked.check_quotas()) >= 1
        with pytest.raises(errors.NotFoundError):
            cluster.run(asked.owned("broker-9"))
