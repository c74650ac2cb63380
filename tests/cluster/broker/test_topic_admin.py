"""Properties, trimming and records of topics, and subscriptions of whole namespaces, through any broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heliograph.base import errors
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("topics"), brokers=2) as running:
        yield running


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
