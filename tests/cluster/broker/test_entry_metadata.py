"""The broker's metadata of entries over real bookies: index and time, over the death of the owner and changes of the
setting, for our handles and for a stock client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

import heliograph
from heliograph.base.clock import wall_ms
from heliograph.client.aio.consumer.message import Message
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster

TOPIC = "counted"
RECEIVE_SECONDS = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, options={"entry_metadata": "both"}, ledger_entries_max=15) as running:
        yield running


def read_all(cluster: BrokerCluster, topic: str = TOPIC) -> list[Message]:
    found = []
    with heliograph.connect(cluster.service_url) as client, client.reader(topic, start="earliest") as reader:
        while reader.has_message_available():
            found.append(reader.receive(RECEIVE_SECONDS))
    return found


def test_index_and_time_over_the_death_of_the_owner(cluster: BrokerCluster) -> None:
    sent: list[bytes] = []
    begun = wall_ms()
    with cluster.client() as client:
        single = client.create_producer(TOPIC, batching_enabled=False)
        batched = client.create_producer(
            TOPIC, batching_enabled=True, batching_max_messages=7, batching_max_publish_delay_ms=1_000
        )
        for _ in range(3):
            for _ in range(20):
                sent += [b"%d" % len(sent), b"%d" % (len(sent) + 1)]
                single.send(sent[-2])
                batched.send_async(sent[-1], None)
            batched.flush()
            cluster.crash_and_restart(cluster.owner_of(TOPIC))
        single.send(b"last")
        messages = read_all(cluster)
        assert {one.value for one in messages} == {*sent, b"last"}
        assert [one.index for one in messages] == list(range(len(messages)))
        times = [one.broker_publish_time_ms or 0 for one in messages]
        assert begun <= times[0]
        assert times == sorted(times)
        assert times[-1] <= wall_ms()
        assert {one.message_id.ledger_id for one in messages} > {messages[0].message_id.ledger_id}  # ledgers changed
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in messages] == [one.value for one in messages]
        middle = messages[len(messages) // 2]
        reader.seek(times[len(messages) // 2])
        assert reader.read_next(60_000).data() in {
            one.value for one in messages if one.broker_publish_time_ms == middle.broker_publish_time_ms
        }


def test_the_setting_may_change_while_a_topic_has_entries(cluster: BrokerCluster) -> None:
    """Entries of all kinds are read, and a broker that counts again goes on where the last one that did stopped."""
    for round_, setting in enumerate(("both", "none", "index", "time", "both")):
        owner = cluster.owner_of(TOPIC)
        cluster.options = {"entry_metadata": setting}
        cluster.crash_and_restart(owner)
        with heliograph.connect(cluster.service_url) as client, client.producer(TOPIC) as producer:
            producer.send_many([b"%d.%d" % (round_, number) for number in range(3)])
    messages = read_all(cluster)
    assert [one.value for one in messages] == [b"%d.%d" % (at // 3, at % 3) for at in range(15)]
    assert [one.index for one in messages] == [0, 1, 2, *[None] * 3, 3, 4, 5, *[None] * 3, 6, 7, 8]
    times = [one.broker_publish_time_ms or 0 for one in messages]
    assert times[0] > 0  # every entry has its time, whatever clients were shown then
    assert times == sorted(times)  # I21
    cluster.options = {"entry_metadata": "both", "entry_metadata_exposed": False}
    cluster.crash_and_restart(cluster.owner_of(TOPIC))
    assert [(one.value, one.index) for one in read_all(cluster)] == [(one.value, None) for one in messages]


def test_a_handle_finds_messages_by_the_brokers_time(cluster: BrokerCluster) -> None:
    """The producer's clock is an hour slow: by its times, every message is older than the time that is looked for."""
    with heliograph.connect(cluster.service_url) as client:
        producer = client.producer(TOPIC)
        reader = client.reader(TOPIC, start="earliest")
        before = wall_ms()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("heliograph.client.aio.producer.partition.wall_ms", lambda: before - 3_600_000)
            producer.send(b"late")
        reader.seek(before)
        found = reader.receive(RECEIVE_SECONDS)
        assert (found.value, found.publish_time_ms) == (b"late", before - 3_600_000)
