"""Topics that are unloaded and loaded again, the inactive-topic scan, and ledgers that a crash left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heliograph.actors.broker.balance.orphan_sweep import OrphanSweep
from heliograph.actors.errors import LedgerClosedError, LedgerFencedError, NoSuchLedgerError
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster, wait_for

RECEIVE_MS = 60_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("idle"), brokers=0) as running:
        running.start_broker(
            "broker", idle_topic_seconds=0.4, inactive_topic_scan_seconds=0.3, orphan_sweep_seconds=0.0
        )
        yield running


def is_loaded(cluster: BrokerCluster, topic: str) -> bool:
    return cluster.brokers[0].broker.topics.find(TopicName.parse(topic)) is not None


def test_an_idle_topic_is_unloaded_and_loses_nothing(cluster: BrokerCluster) -> None:
    with cluster.client() as client:
        client.subscribe("quiet", "s").close()
        producer = client.create_producer("quiet")
        for number in range(10):
            producer.send(b"%d" % number)
        assert is_loaded(cluster, "quiet")  # it is in use
        producer.close()
        wait_for(lambda: not is_loaded(cluster, "quiet"), "the topic to be closed")
        assert cluster.run(cluster.admin.partitions("quiet")) == 0  # a question about it does not open it
        assert not is_loaded(cluster, "quiet")
        client.create_producer("quiet").send(b"10")
        consumer = client.subscribe("quiet", "s")
        assert [int(consumer.receive(RECEIVE_MS).data()) for _ in range(11)] == list(range(11))


def test_unloaded_topics_are_deleted_when_they_are_inactive(cluster: BrokerCluster) -> None:
    run, admin = cluster.run, cluster.admin
    run(admin.publish("forgotten", [b"x"]))
    wait_for(lambda: not is_loaded(cluster, "forgotten"), "the topic to be closed")
    run(admin.namespaces.set_topic_policies("forgotten", {"inactive_delete_seconds": 1}))
    name = "persistent://public/default/forgotten"
    wait_for(lambda: name not in [found["name"] for found in run(admin.list_topics())], "it to be deleted")


def test_an_orphaned_ledger_is_fenced_and_deleted(cluster: BrokerCluster) -> None:
    running = cluster.brokers[0]
    topic = "persistent://public/default/owner"
    [position] = cluster.run(cluster.admin.publish(topic, [b"kept"]))

    async def scenario() -> None:
        writer = await running.ledgers.create(
            ensemble_size=3, write_quorum=3, ack_quorum=2, properties={"use": "topic", "topic": topic}
        )
        await writer.add(b"named by nothing")
        sweep = OrphanSweep(running.store, running.ledgers, grace_seconds=0.0)
        assert await sweep.sweep() == 1
        with pytest.raises(NoSuchLedgerError):
            await running.ledgers.metadata(writer.ledger_id)
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await writer.add(b"too late")
        await running.ledgers.metadata(int(position.split(":")[0]))  # I14: it is named

    cluster.run(scenario())
    assert len(cluster.run(cluster.admin.ledger_ranges(topic))) == 1
