"""Compaction with the stock Pulsar client: readers, consumers and TableView see the latest message of each key."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pulsar
import pytest

import heliograph
from tests.cluster.support.broker_cluster import BrokerCluster, wait_for
from tests.waits import block_until

EARLIEST = pulsar.InitialPosition.Earliest
RECEIVE_MS = 60_000
HOLDER = "holder"
DEADLINE_SECONDS = 60
CLUSTER: dict[str, Any] = {
    "brokers": 2,
    "options": {"compacted_deletions_seconds": 0},
    "retention_seconds": 0,
    "ledger_entries_max": 40,
}  # except where a test says otherwise


def publish(client: pulsar.Client, topic: str, *messages: tuple[str | None, bytes], batching: bool = False) -> None:
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=60_000)
    for key, value in messages:
        producer.send_async(value, lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


def hold(cluster: BrokerCluster, topic: str) -> None:
    """Create the topic with a subscription: without one it could be trimmed before it is compacted."""
    cluster.run(cluster.admin.create_subscription(topic, HOLDER, "earliest"))


def compact(cluster: BrokerCluster, topic: str) -> None:
    cluster.run(cluster.admin.compact_topic(topic))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (status := cluster.run(cluster.admin.compaction_status(topic)))["status"] == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert status == {"status": "SUCCESS", "lastError": ""}


def read_all(client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found: list[tuple[str, bytes]] = []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


@pytest.mark.parametrize("batching", [False, True])
def test_readers_of_the_compacted_form_get_the_latest_of_each_key(
    cluster: BrokerCluster, client: pulsar.Client, batching: bool
) -> None:
    topic = f"prices-{batching}"
    hold(cluster, topic)
    rounds = [(f"k{n % 10}", b"%d" % n) for n in range(200)]
    publish(client, topic, *rounds, (None, b"no key"), ("k3", b""), ("k4", b""), batching=batching)
    compact(cluster, topic)
    expected = [(f"k{n % 10}", b"%d" % n) for n in range(190, 200) if n % 10 not in (3, 4)]
    assert read_all(client, topic) == expected
    publish(client, topic, ("k5", b"new"), ("k3", b"back"))
    assert read_all(client, topic) == [*expected, ("k5", b"new"), ("k3", b"back")]
    compact(cluster, topic)
    again = [pair for pair in expected if pair[0] != "k5"]
    assert read_all(client, topic) == [*again, ("k5", b"new"), ("k3", b"back")]


def test_what_was_compacted_outlives_its_ledgers_and_its_owner(cluster: BrokerCluster, client: pulsar.Client) -> None:
    topic = "states"
    hold(cluster, topic)
    for n in range(3):
        publish(client, topic, *((f"k{number}", b"%d" % n) for number in range(50)))
        compact(cluster, topic)
    owner = cluster.owner_of(topic)
    served = owner.broker.topics.find(next(t.name for t in owner.broker.topics.loaded if t.name.local_name == topic))
    assert served is not None
    before = len(served.ledger.record.ledgers)
    cluster.run(cluster.admin.delete_subscription(topic, HOLDER))
    wait_for(lambda: len(served.ledger.record.ledgers) < before, "trimming")
    latest = [(f"k{number}", b"2") for number in range(50)]
    assert read_all(client, topic) == latest
    cluster.run(cluster.admin.unload_topic(topic))
    assert read_all(client, topic) == latest


def test_a_durable_consumer_goes_on_over_a_compaction(cluster: BrokerCluster, client: pulsar.Client) -> None:
    topic = "durable"
    hold(cluster, topic)
    publish(client, topic, *((f"k{n % 5}", b"%d" % n) for n in range(50)))
    compact(cluster, topic)
    consumer = client.subscribe(topic, "sub", initial_position=EARLIEST, is_read_compacted=True)
    first = [consumer.receive(RECEIVE_MS) for _ in range(2)]
    assert [message.data() for message in first] == [b"45", b"46"]
    for message in first:
        consumer.acknowledge(message)
    publish(client, topic, ("k0", b"50"), ("k4", b""))
    compact(cluster, topic)
    consumer.close()
    again = client.subscribe(topic, "sub", is_read_compacted=True)
    rest: list[bytes] = []
    while len(rest) < 3:
        message = again.receive(RECEIVE_MS)
        again.acknowledge(message)
        rest.append(message.data())
    assert rest == [b"47", b"48", b"50"]
    again.close()


@pytest.mark.parametrize("batching", [False, True])
def test_readers_that_were_half_through_hear_of_deletions(
    cluster: BrokerCluster, client: pulsar.Client, batching: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stock reader and a view of ours are among the values when a compaction drops all of them."""
    for running in cluster.brokers:
        monkeypatch.setattr(running.broker.topics.setting.consumers, "deletions_kept_seconds", 3_600)
    topic = f"deleted-{batching}"
    hold(cluster, topic)
    publish(client, topic, *((f"k{n}", b"%d" % n) for n in range(30)), ("end", b"1"), batching=batching)
    compact(cluster, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True, receiver_queue_size=1)
    seen = {}
    for _ in range(20):
        message = reader.read_next(RECEIVE_MS)
        seen[message.partition_key()] = message.data()
    publish(client, topic, *((f"k{n}", b"") for n in range(30)), batching=batching)
    compact(cluster, topic)
    publish(client, topic, ("end", b"2"))
    while seen.get("end") != b"2":
        message = reader.read_next(RECEIVE_MS)
        seen[message.partition_key()] = message.data()
    reader.close()
    assert {key: value for key, value in seen.items() if value} == {"end": b"2"}
    with heliograph.connect(cluster.service_url) as ours, ours.table_view(topic) as view:
        assert view.snapshot() == {"end": b"2"}  # a new view knows none of the keys


def test_a_table_view_follows(cluster: BrokerCluster, client: pulsar.Client) -> None:
    topic = "table"
    hold(cluster, topic)
    publish(client, topic, *((f"k{n % 4}", b"%d" % n) for n in range(40)))
    compact(cluster, topic)
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in ("k0", "k1", "k2", "k3")} == {
        "k0": b"36", "k1": b"37", "k2": b"38", "k3": b"39",
    }  # fmt: skip
    publish(client, topic, ("k1", b"fresh"))
    compact(cluster, topic)
    publish(client, topic, ("k2", b"fresher"))
    block_until(lambda: view.get("k2") == b"fresher")
    assert view.get("k1") == b"fresh"
    view.close()


def test_our_own_client_reads_the_same(cluster: BrokerCluster, client: pulsar.Client) -> None:
    topic = "ours"
    hold(cluster, topic)
    publish(client, topic, *((f"k{n % 6}", b"%d" % n) for n in range(60)), ("k2", b""), batching=True)
    compact(cluster, topic)

    async def read() -> list[tuple[str | None, bytes]]:
        ours = await heliograph.connect_async(cluster.service_url)
        try:
            reader = await ours.reader(topic, "earliest", read_compacted=True)
            found: list[tuple[str | None, bytes]] = []
            while len(found) < 5:
                received = await reader.receive_many(100, RECEIVE_MS / 1_000)
                assert received
                found += [(message.key, bytes(message.value)) for message in received]
            assert not await reader.receive_many(1, 0.2)
            return found
        finally:
            await ours.close()

    assert asyncio.run(read()) == [(f"k{n}", b"%d" % (54 + n)) for n in (0, 1, 3, 4, 5)]


@pytest.mark.parametrize("compression", list(pulsar.CompressionType.__members__.values()), ids=lambda one: one.name)
def test_compressed_batches_are_compacted(
    cluster: BrokerCluster, client: pulsar.Client, compression: pulsar.CompressionType
) -> None:
    topic = f"codec-{compression.name}"
    hold(cluster, topic)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000, compression_type=compression
    )
    for number in range(30):
        producer.send_async(b"%d" % number * 100, lambda *_: None, partition_key=f"k{number % 20}")
    producer.flush()
    producer.close()
    compact(cluster, topic)
    assert read_all(client, topic) == [(f"k{number % 20}", b"%d" % number * 100) for number in range(10, 30)]
