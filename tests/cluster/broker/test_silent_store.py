"""A metadata store that is silent: open topics are served, what needs the store waits and goes on by itself (I13)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

from heliograph.actors.broker.cursor import log as cursor_log
from heliograph.actors.broker.topic.state import TopicState
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.completion import shielded
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, RunningBroker, broker_cluster, wait_for

LEDGER_ENTRIES_MAX = 20
RECEIVE_MS = 60_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, bookies=4, ledger_entries_max=LEDGER_ENTRIES_MAX) as running:
        yield running


@contextmanager
def silence(cluster: BrokerCluster) -> Iterator[None]:
    """The store answers nobody."""
    sessions = list(cluster.metadata._stores)

    async def each(act: str) -> None:
        for session_id in sessions:
            getattr(cluster.metadata, act)(session_id)

    cluster.run(each("suspend_session"))
    try:
        yield
    finally:
        cluster.run(each("resume_session"))


def topic_of(cluster: BrokerCluster, name: str) -> BrokerTopic:
    topic = cluster.brokers[0].broker.topics.find(TopicName.parse(name))
    assert topic is not None, "it is open"
    return topic


async def persisted(topic: BrokerTopic, subscription: str) -> None:
    """Return once the acknowledgements that have come are durable."""
    log = topic.subscriptions[subscription].log
    assert log is not None
    await shielded(log.persist())


def test_an_open_topic_is_served_through_silence(cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_log, "LEDGER_ENTRIES_MAX", LEDGER_ENTRIES_MAX)
    with cluster.client() as client:
        producer = client.create_producer("open")
        consumer = client.subscribe("open", "s", pulsar.ConsumerType.KeyShared)
        producer.send(b"0")
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
        topic = topic_of(cluster, "open")
        wait_for(lambda: topic.subscriptions["s"].log.ledger_id >= 0, "a cursor ledger")  # type: ignore[union-attr]
        ledgers = topic.ledger.chain.ledger_ids
        with silence(cluster):
            for number in range(1, 3 * LEDGER_ENTRIES_MAX):
                producer.send(b"%d" % number)
                message = consumer.receive(RECEIVE_MS)
                assert message.data() == b"%d" % number
                consumer.acknowledge(message)
            # The client waits for no receipts, and sends acknowledgements in groups, up to 100 ms later.
            wait_for(lambda: topic.subscriptions["s"].cursor.mark == 3 * LEDGER_ENTRIES_MAX, "the acknowledgements")
            cluster.run(persisted(topic, "s"))  # they are confirmed, though the store is silent
            assert topic.ledger.chain.ledger_ids == ledgers, "the ledger is written on beyond its limits"
            again = client.create_producer("open")  # lookups are answered by what is known
            again.send(b"last")
            with cluster.client() as other:  # on a connection of its own
                other.create_producer("open").send(b"very last")
        wait_for(lambda: len(topic.ledger.chain.ledger_ids) > len(ledgers), "the next ledger")
        producer.send(b"after")
        assert [consumer.receive(RECEIVE_MS).data() for _ in range(3)] == [b"last", b"very last", b"after"]
        cluster.crash_and_restart(cluster.brokers[0])
        assert consumer.receive(RECEIVE_MS).data() == b"last", "the acknowledgements were durable"  # I11


def test_a_bookie_that_ends_during_silence_is_done_without(cluster: BrokerCluster) -> None:
    with cluster.client() as client:
        producer = client.create_producer("degraded")
        producer.send(b"0")
        topic = topic_of(cluster, "degraded")
        bookies = topic.ledger.writer.metadata.last_segment.bookies
        with silence(cluster):
            ended = next(bookie for bookie in cluster.bookies if bookie._config.bookie_id == bookies[0])
            cluster.run(ended.stop())
            cluster.bookies.remove(ended)
            for number in range(1, 10):
                producer.send(b"%d" % number)
            assert topic.ledger.writer.metadata.last_segment.bookies == bookies
        producer.send(b"10")
        wait_for(lambda: topic.ledger.writer.metadata.last_segment.bookies != bookies, "its replacement")


def test_what_needs_the_store_is_refused_in_words_and_interrupts_nothing(cluster: BrokerCluster) -> None:
    with cluster.client() as client:
        producer = client.create_producer("open")
        producer.send(b"0")
        connections = cluster.brokers[0].broker.statistics()["connections_total"]
        with silence(cluster):
            quick = pulsar.Client(
                cluster.service_url,
                operation_timeout_seconds=1,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
            with pytest.raises(pulsar.PulsarException):
                quick.create_producer("new")
            with pytest.raises(pulsar.PulsarException):
                quick.subscribe("open", "new")
            quick.close()
            producer.send(b"1")
        client.create_producer("new").send(b"0")
        client.subscribe("open", "new")
        assert cluster.brokers[0].broker.statistics()["connections_total"] == connections + 1


@pytest.fixture
def two(tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, brokers=2) as running:
        yield running


def cut_from_store(cluster: BrokerCluster, owner: RunningBroker) -> None:
    """Cut a broker off from the store, which ends its session without a word."""

    async def cut() -> None:
        owner.store._clock.timeout = 0.3  # soon in doubt
        cluster.metadata.suspend_session(owner.store.session_id)
        del cluster.metadata._stores[owner.store.session_id]
        cluster.metadata.expire_session(owner.store.session_id)

    owner.is_gone = True
    cluster.run(cut())


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.KeyShared])
def test_a_quiet_owner_that_was_replaced_learns_it_from_the_bookies(
    two: BrokerCluster, kind: pulsar.ConsumerType
) -> None:
    with two.client() as client:
        consumer = client.subscribe("quiet", "s", kind)
        client.create_producer("quiet").send(b"0", partition_key="k")
        owner = two.owner_of("quiet")
        consumer.receive(RECEIVE_MS)
        topic = owner.broker.topics.find(TopicName.parse("quiet"))
        assert topic is not None
        cut_from_store(two, owner)
        if kind is pulsar.ConsumerType.KeyShared:
            wait_for(lambda: owner.broker.ownership.is_in_doubt(topic.bundle), "doubt")
            wait_for(topic.setting.witness.holds, "the word of the bookies")
        assert topic.is_open
        with two.client() as other:  # the other broker takes the topic over
            other.create_producer("quiet").send(b"1", partition_key="k")
            wait_for(lambda: topic.state is TopicState.LOST, "the word of a bookie")  # I13
            got = [consumer.receive(RECEIVE_MS).data() for _ in range(2)]  # at the new owner, after its hold
            assert got == [b"0", b"1"]
        owner.is_gone = False
