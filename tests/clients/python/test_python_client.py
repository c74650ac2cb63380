"""Pulsar's Python client, which is the C++ client below: what its users do, one feature a test.

The cluster's own tests use this client everywhere; here is what docs/clients.md says of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pulsar
import pytest

from tests.clients.python.user import CLIENT, LONG_MS, WAIT_MS, User, numbered, texts
from tests.clients.support.report import ClientMatrix
from tests.cluster.support.broker_cluster import wait_for

MESSAGES = 600
CODECS = {
    "codec_lz4": pulsar.CompressionType.LZ4,
    "codec_zlib": pulsar.CompressionType.ZLib,
    "codec_zstd": pulsar.CompressionType.ZSTD,
    "codec_snappy": pulsar.CompressionType.SNAPPY,
}


def produce_consume(user: User) -> None:
    consumer = user.subscribe()
    user.publish(10)
    assert texts(consumer, 10) == numbered(10)


def batching(user: User) -> None:
    consumer = user.subscribe()
    producer = user.client.create_producer(user.topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS)
    ids: list[pulsar.MessageId] = []
    for text in numbered(5):
        producer.send_async(text.encode(), lambda _, sent: ids.append(sent))
    producer.flush()
    assert [one.batch_index() for one in ids] == [0, 1, 2, 3, 4]
    assert texts(consumer, 5) == numbered(5)


def exclusive(user: User) -> None:
    user.subscribe()
    with pytest.raises(pulsar.ConsumerBusy):
        user.subscribe()


def shared(user: User) -> None:
    both = [user.subscribe(pulsar.ConsumerType.Shared, receiver_queue_size=1) for _ in range(2)]
    user.publish(10)
    found: list[str] = []
    deadline = time.monotonic() + WAIT_MS / 1000
    while len(found) < 10 and time.monotonic() < deadline:
        for consumer in both:
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            found.append(message.data().decode())
    assert sorted(found) == sorted(numbered(10))


def failover(user: User) -> None:
    both = [user.subscribe(pulsar.ConsumerType.Failover, consumer_name=name) for name in "ab"]
    user.publish(5)
    deadline = time.monotonic() + WAIT_MS / 1000
    first: pulsar.Message | None = None
    while first is None and time.monotonic() < deadline:
        for active in both:
            with contextlib.suppress(pulsar.Timeout):
                first = active.receive(200)
                break
    assert first is not None, "one of them is active; which depends on the name of the topic"
    active.acknowledge(first)
    assert [first.data().decode(), *texts(active, 4)] == numbered(5)
    both.remove(active)
    active.close()
    user.publish(5, first=5)
    assert texts(both[0], 5) == numbered(5, 5)


def key_shared(user: User) -> None:
    both = [user.subscribe(pulsar.ConsumerType.KeyShared, consumer_name=name) for name in "ab"]
    producer = user.client.create_producer(user.topic)
    for number in range(60):
        producer.send(str(number).encode(), partition_key=f"key-{number % 12}")
    owners: dict[str, set[int]] = {}
    seen: dict[str, list[int]] = {}
    count = 0
    deadline = time.monotonic() + WAIT_MS / 1000
    while count < 60 and time.monotonic() < deadline:
        for index, consumer in enumerate(both):
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            count += 1
            owners.setdefault(message.partition_key(), set()).add(index)
            seen.setdefault(message.partition_key(), []).append(int(message.data()))
    assert count == 60
    assert all(len(one) == 1 for one in owners.values()), "a key goes to one consumer"
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def cumulative_ack(user: User) -> None:
    consumer = user.subscribe()
    user.publish(5)
    messages = [consumer.receive(WAIT_MS) for _ in range(5)]
    consumer.acknowledge_cumulative(messages[2])
    consumer.redeliver_unacknowledged_messages()
    assert texts(consumer, 2) == numbered(2, 3)


def negative_ack(user: User) -> None:
    consumer = user.subscribe(pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    user.publish(1)
    consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    again = consumer.receive(WAIT_MS)
    assert again.redelivery_count() == 1
    consumer.acknowledge(again)


def dead_letters(user: User) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, f"{user.topic}-dead", "kept")
    consumer = user.subscribe(
        pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy
    )
    user.publish(1)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(2_000)
    dead = user.client.subscribe(f"{user.topic}-dead", "kept")
    assert texts(dead, 1) == ["m0"]


def delayed(user: User) -> None:
    consumer = user.subscribe(pulsar.ConsumerType.Shared)
    producer = user.client.create_producer(user.topic)
    begun = time.monotonic()
    producer.send(b"late", deliver_at=int(time.time() * 1000) + 1_500)
    assert texts(consumer, 1) == ["late"]
    assert time.monotonic() - begun > 1.0


def chunking(user: User) -> None:
    consumer = user.subscribe()
    body = bytes(range(256)) * 40_000
    producer = user.client.create_producer(user.topic, chunking_enabled=True)
    producer.send(body)
    assert consumer.receive(WAIT_MS).data() == body


def reader(user: User) -> None:
    ids = user.publish(5)
    assert texts(user.client.create_reader(user.topic, pulsar.MessageId.earliest), 5) == numbered(5)
    assert texts(user.client.create_reader(user.topic, ids[1]), 3) == numbered(3, 2)


def seek_id(user: User) -> None:
    consumer = user.subscribe()
    ids = user.publish(5)
    assert texts(consumer, 5) == numbered(5)
    consumer.seek(ids[2])
    assert texts(consumer, 2) == numbered(2, 3)


def seek_time(user: User) -> None:
    consumer = user.subscribe()
    user.publish(2)
    time.sleep(0.2)
    between = int(time.time() * 1000)
    user.publish(2, first=2)
    assert texts(consumer, 4) == numbered(4)
    consumer.seek(between)
    assert texts(consumer, 2) == numbered(2, 2)


def table_view(user: User) -> None:
    producer = user.client.create_producer(user.topic)
    producer.send(b"1", partition_key="a")
    producer.send(b"2", partition_key="a")
    view = user.client.create_table_view(user.topic)
    producer.send(b"3", partition_key="b")
    wait_for(lambda: len(view) == 2, "the second key")
    assert (view.get("a"), view.get("b")) == (b"2", b"3")
    view.close()


def partitions(user: User) -> None:
    user.stack.cluster.run(user.stack.cluster.admin.create_topic(user.topic, 3))
    consumer = user.subscribe()
    user.publish(9)
    assert sorted(texts(consumer, 9)) == sorted(numbered(9))
    assert len(user.client.get_topic_partitions(user.topic)) == 3


def access_modes(user: User) -> None:
    mode = pulsar.ProducerAccessMode
    user.client.create_producer(user.topic, access_mode=mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        user.client.create_producer(user.topic, access_mode=mode.Exclusive)


def schema_json(user: User) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]  # the library has no types
        number = pulsar.schema.Integer()
        text = pulsar.schema.String()

    schema = pulsar.schema.JsonSchema(Order)
    consumer = user.subscribe(schema=schema)
    user.client.create_producer(user.topic, schema=schema).send(Order(number=7, text="seven"))
    found = consumer.receive(WAIT_MS).value()
    assert (found.number, found.text) == (7, "seven")


def survive(user: User, harm: Callable[[], object]) -> None:
    """Publish and consume while something happens to the topic, twice: nothing fails, is lost or changes its order."""
    consumer = user.subscribe(pulsar.ConsumerType.Failover)
    producer = user.client.create_producer(
        user.topic, batching_enabled=True, block_if_queue_full=True, send_timeout_millis=0
    )
    failures: list[object] = []
    found: list[str] = []
    for number in range(MESSAGES):
        producer.send_async(
            f"m{number}".encode(), lambda result, _: None if result == pulsar.Result.Ok else failures.append(result)
        )
        time.sleep(0.002)
        if number in (MESSAGES // 3, 2 * MESSAGES // 3):
            harm()
    producer.flush()
    assert not failures
    while len(set(found)) < MESSAGES:
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        found.append(message.data().decode())
    assert list(dict.fromkeys(found)) == numbered(MESSAGES), "each at its first delivery, in order"


def unload(user: User) -> None:
    survive(user, lambda: user.stack.answer({"ask": "unload", "namespace": "public/default"}))


def redirect(user: User) -> None:
    survive(user, lambda: user.stack.move(user.topic))


def broker_death(user: User) -> None:
    survive(user, lambda: user.stack.crash_owner(user.topic))


SCENARIOS: dict[str, Callable[[User], None]] = {
    one.__name__: one
    for one in (
        produce_consume, batching, exclusive, shared, failover, key_shared, cumulative_ack, negative_ack, dead_letters,
        delayed, chunking, reader, seek_id, seek_time, table_view, partitions, access_modes, schema_json, unload,
        redirect, broker_death,
    )
}  # fmt: skip


@pytest.mark.parametrize("feature", SCENARIOS)
def test_feature(feature: str, user: User, matrix: ClientMatrix) -> None:
    with matrix.noting(CLIENT, pulsar.__version__, feature):
        SCENARIOS[feature](user)


@pytest.mark.parametrize("feature", CODECS)
def test_codec(feature: str, user: User, matrix: ClientMatrix) -> None:
    with matrix.noting(CLIENT, pulsar.__version__, feature):
        consumer = user.subscribe()
        user.publish(3, compression_type=CODECS[feature])
        assert texts(consumer, 3) == numbered(3)
