"""The stock Pulsar client against our brokers and real bookies."""

from __future__ import annotations

import re

import pulsar
import pytest

from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from tests.cluster.support.broker_cluster import BrokerCluster

EARLIEST = pulsar.InitialPosition.Earliest
RECEIVE_MS = 60_000


def send(client: pulsar.Client, topic: str, count: int, **options: object) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, **options)
    ids = [producer.send(b"m%d" % n) for n in range(count)]
    producer.close()
    return ids


def receive(consumer: pulsar.Consumer | pulsar.Reader, count: int) -> list[bytes]:
    read = consumer.read_next if isinstance(consumer, pulsar.Reader) else consumer.receive
    return [read(RECEIVE_MS).data() for _ in range(count)]


def names(*numbers: int) -> list[bytes]:
    return [b"m%d" % n for n in numbers]


def waiting(consumer: pulsar.Consumer) -> list[pulsar.Message]:
    """Receive the messages that arrived or arrive within a moment; more may follow."""
    messages = []
    while True:
        try:
            messages.append(consumer.receive(50))
        except pulsar.Timeout:
            return messages


def nothing_more(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)


def test_publish_and_consume_in_order(client: pulsar.Client) -> None:
    consumer = client.subscribe("order", "sub")
    ids = send(client, "order", 50)
    positions = [(one.ledger_id(), one.entry_id()) for one in ids]
    assert positions == sorted(positions)  # I2
    messages = [consumer.receive(RECEIVE_MS) for _ in range(50)]
    assert [message.data() for message in messages] == names(*range(50))
    assert [(m.message_id().ledger_id(), m.message_id().entry_id()) for m in messages] == positions
    for message in messages:
        consumer.acknowledge(message)


@pytest.mark.parametrize("compression", list(pulsar.CompressionType.__members__.values()), ids=lambda one: one.name)
def test_batches_are_stored_verbatim(client: pulsar.Client, compression: pulsar.CompressionType) -> None:
    topic = f"batches-{compression.name.lower()}"
    consumer = client.subscribe(topic, "sub", initial_position=EARLIEST)
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=100,
        batching_max_publish_delay_ms=60_000,
        compression_type=compression,
        block_if_queue_full=True,
    )
    for n in range(2_000):
        producer.send_async(b"m%d" % n, lambda result, _: None, properties={"n": str(n)}, partition_key=f"k{n % 7}")
    producer.flush()
    messages = [consumer.receive(RECEIVE_MS) for _ in range(2_000)]
    assert [m.data() for m in messages] == names(*range(2_000))
    assert messages[77].properties() == {"n": "77"}
    assert messages[77].partition_key() == "k0"
    assert len({m.message_id().entry_id() for m in messages}) == 20


def test_two_subscriptions_get_everything(client: pulsar.Client) -> None:
    one = client.subscribe("two", "one")
    other = client.subscribe("two", "other", pulsar.ConsumerType.Shared)
    send(client, "two", 30)
    assert receive(one, 30) == names(*range(30))
    assert sorted(receive(other, 30)) == sorted(names(*range(30)))


def test_a_second_exclusive_consumer_is_refused(client: pulsar.Client) -> None:
    client.subscribe("busy", "sub")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe("busy", "sub")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe("busy", "sub", pulsar.ConsumerType.Shared)


def test_producer_names_are_unique(client: pulsar.Client) -> None:
    first = client.create_producer("names", producer_name="mine")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("names", producer_name="mine")
    first.close()
    client.create_producer("names", producer_name="mine")
    assert client.create_producer("names").producer_name() != client.create_producer("names").producer_name()


def test_shared_consumers_share(client: pulsar.Client) -> None:
    consumers = [
        client.subscribe("shared", "sub", pulsar.ConsumerType.Shared, receiver_queue_size=10) for _ in range(3)
    ]
    send(client, "shared", 90)
    got: list[bytes] = []
    while len(got) < 90:
        for consumer in consumers:
            for message in waiting(consumer):
                got.append(message.data())
                consumer.acknowledge(message)
    assert sorted(got) == sorted(names(*range(90)))


def test_key_shared_keeps_keys_together_and_in_order(client: pulsar.Client) -> None:
    def note(messages: list[pulsar.Message], into: dict[str, list[int]]) -> int:
        for message in messages:
            into.setdefault(message.partition_key(), []).append(int(message.data()[1:]))
        return len(messages)

    first = client.subscribe("keys", "sub", pulsar.ConsumerType.KeyShared)
    producer = client.create_producer("keys")
    for n in range(100):
        producer.send(b"m%d" % n, partition_key=f"k{n % 20}")
    by_first: dict[str, list[int]] = {}
    held = [first.receive(RECEIVE_MS) for _ in range(100)]
    note(held, by_first)
    second = client.subscribe("keys", "sub", pulsar.ConsumerType.KeyShared)
    for n in range(100, 200):
        producer.send(b"m%d" % n, partition_key=f"k{n % 20}")
    nothing_more(second)  # I16: the first still holds messages of every key
    for message in held:
        first.acknowledge(message)
    later_first: dict[str, list[int]] = {}
    by_second: dict[str, list[int]] = {}
    left = 100
    while left:
        for consumer, into in ((second, by_second), (first, later_first)):
            messages = waiting(consumer)
            left -= note(messages, into)
            for message in messages:
                consumer.acknowledge(message)
    assert by_second
    assert later_first
    assert not by_second.keys() & later_first.keys()  # I16
    merged = {key: by_first[key] + {**by_second, **later_first}[key] for key in by_first}
    assert merged == {f"k{k}": list(range(k, 200, 20)) for k in range(20)}


def test_a_leaving_consumer_hands_over_what_it_held(client: pulsar.Client) -> None:
    first = client.subscribe("leaving", "sub", pulsar.ConsumerType.Shared)
    send(client, "leaving", 20)
    messages = [first.receive(RECEIVE_MS) for _ in range(20)]
    for message in messages[::2]:
        first.acknowledge(message)
    second = client.subscribe("leaving", "sub", pulsar.ConsumerType.Shared)
    first.close()
    again = [second.receive(RECEIVE_MS) for _ in range(10)]
    assert sorted(m.data() for m in again) == sorted(names(*range(1, 20, 2)))
    assert {m.redelivery_count() for m in again} == {0}


def test_negative_acknowledgement_counts_redeliveries(client: pulsar.Client) -> None:
    consumer = client.subscribe("nack", "sub", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50)
    send(client, "nack", 5)
    for _ in range(5):
        message = consumer.receive(RECEIVE_MS)
        if message.data() == b"m2":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    for count in (1, 2):
        message = consumer.receive(RECEIVE_MS)
        assert (message.data(), message.redelivery_count()) == (b"m2", count)
        consumer.negative_acknowledge(message)
    consumer.acknowledge(consumer.receive(RECEIVE_MS))
    nothing_more(consumer)


def test_reader_start_positions(client: pulsar.Client) -> None:
    ids = send(client, "reader", 10)
    assert receive(client.create_reader("reader", pulsar.MessageId.earliest), 10) == names(*range(10))
    assert receive(client.create_reader("reader", ids[4]), 5) == names(*range(5, 10))
    inclusive = client.create_reader("reader", ids[4], start_message_id_inclusive=True)
    assert receive(inclusive, 6) == names(*range(4, 10))
    latest = client.create_reader("reader", pulsar.MessageId.latest)
    assert not latest.has_message_available()
    send(client, "reader", 1)
    assert receive(latest, 1) == names(0)


def test_reader_inside_a_batch(client: pulsar.Client) -> None:
    producer = client.create_producer("reader-batch", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    ids: list[pulsar.MessageId] = []
    for n in range(10):
        producer.send_async(b"m%d" % n, lambda result, one: ids.append(one))
    producer.flush()
    assert len({one.entry_id() for one in ids}) == 1
    assert receive(client.create_reader("reader-batch", ids[4]), 5) == names(*range(5, 10))
    reader = client.create_reader("reader-batch", pulsar.MessageId.earliest)
    assert receive(reader, 10) == names(*range(10))
    assert not reader.has_message_available()


def test_seek_by_id_and_time(client: pulsar.Client) -> None:
    consumer = client.subscribe("seek", "sub", initial_position=EARLIEST, receiver_queue_size=5)
    ids = send(client, "seek", 20)
    first = [consumer.receive(RECEIVE_MS) for _ in range(20)]
    consumer.acknowledge_cumulative(first[-1])
    consumer.seek(ids[9])
    assert receive(consumer, 10) == names(*range(10, 20))
    consumer.seek(pulsar.MessageId.earliest)
    assert receive(consumer, 20) == names(*range(20))
    consumer.seek(first[15].publish_timestamp())
    assert receive(consumer, 1)[0] in names(*range(16))
    consumer.seek(pulsar.MessageId.latest)
    nothing_more(consumer)
    send(client, "seek", 1)
    assert receive(consumer, 1) == names(0)


def test_acknowledged_messages_of_a_batch_do_not_come_back(client: pulsar.Client) -> None:
    def subscribe() -> pulsar.Consumer:
        return client.subscribe("batch-index", "sub", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)

    consumer = subscribe()
    producer = client.create_producer("batch-index", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for n in range(10):
        producer.send_async(b"m%d" % n, lambda result, _: None)
    producer.flush()
    for message in [consumer.receive(RECEIVE_MS) for _ in range(10)][:7]:
        consumer.acknowledge(message)
    consumer.close()
    again = subscribe()
    assert receive(again, 3) == names(7, 8, 9)
    nothing_more(again)


def test_durable_acknowledgements_and_unsubscribe(client: pulsar.Client) -> None:
    consumer = client.subscribe("durable", "sub")
    send(client, "durable", 10)
    for message in [consumer.receive(RECEIVE_MS) for _ in range(10)][:4]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe("durable", "sub")
    assert receive(consumer, 6) == names(*range(4, 10))
    consumer.unsubscribe()
    consumer = client.subscribe("durable", "sub", initial_position=EARLIEST)
    assert receive(consumer, 10) == names(*range(10))


def test_last_message_id(client: pulsar.Client) -> None:
    consumer = client.subscribe("last", "sub")
    assert consumer.get_last_message_id() == pulsar.MessageId.earliest
    ids = send(client, "last", 3)
    assert consumer.get_last_message_id() == ids[-1]


def test_partitioned_topic(cluster: BrokerCluster, client: pulsar.Client) -> None:
    cluster.run(cluster.admin.create_topic("parts", 3))
    assert client.get_topic_partitions("parts") == [
        f"persistent://public/default/parts-partition-{n}" for n in range(3)
    ]
    consumer = client.subscribe("parts", "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer("parts")
    for n in range(60):
        producer.send(b"m%d" % n, partition_key=f"k{n % 10}")
    messages = [consumer.receive(RECEIVE_MS) for _ in range(60)]
    assert sorted(m.data() for m in messages) == sorted(names(*range(60)))
    assert {m.message_id().partition() for m in messages} <= {0, 1, 2}
    by_key: dict[str, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.partition_key(), []).append(int(message.data()[1:]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_failover_moves_to_the_next_consumer(cluster: BrokerCluster, client: pulsar.Client) -> None:
    consumers = [client.subscribe("failover", "sub", pulsar.ConsumerType.Failover, consumer_name=name) for name in "ab"]
    send(client, "failover", 4)
    active = "ab".index(
        cluster.run(cluster.admin.topic_stats("failover"))["subscriptions"]["sub"]["activeConsumerName"]
    )
    assert receive(consumers[active], 4) == names(*range(4))
    nothing_more(consumers[1 - active])
    consumers.pop(active).close()
    assert receive(consumers[0], 4) == names(*range(4))


def test_large_messages_and_chunks(client: pulsar.Client) -> None:
    consumer = client.subscribe("large", "sub", initial_position=EARLIEST)
    producer = client.create_producer("large")
    big = bytes(range(256)) * (4 << 12)  # 4 MiB
    producer.send(big)
    assert consumer.receive(RECEIVE_MS).data() == big
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * ((5 << 20) + 1))
    producer.send(b"after")
    assert consumer.receive(RECEIVE_MS).data() == b"after"
    chunked = client.create_producer("large", chunking_enabled=True)
    huge = b"abcdefgh" * (12 << 17)  # 12 MiB
    chunked.send(huge)
    assert consumer.receive(RECEIVE_MS).data() == huge


def test_names_and_topics_that_cannot_be(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://nobody/nothing/topic")


def test_regex_consumer_finds_topics(client: pulsar.Client) -> None:
    for name in ("regex-a", "regex-b"):
        send(client, name, 1)
    consumer = client.subscribe(re.compile("persistent://public/default/regex-.*"), "sub", initial_position=EARLIEST)
    assert receive(consumer, 2) == names(0, 0)


def test_backlog_is_read_from_bookies(cluster: BrokerCluster, client: pulsar.Client) -> None:
    """The cache is empty: every entry is read from the bookies, across ledgers."""
    topic = "backlog"
    producer = client.create_producer(topic, block_if_queue_full=True)
    payload = b"x" * 4_000
    for n in range(1_500):
        producer.send_async(b"%d:" % n + payload, lambda result, _: None)
    producer.flush()
    owner = cluster.owner_of(topic).broker
    cluster.run(forget_everything(owner._cache))
    consumer = client.subscribe(topic, "sub", initial_position=EARLIEST, receiver_queue_size=100)
    assert [int(data.split(b":")[0]) for data in receive(consumer, 1_500)] == list(range(1_500))
    assert owner._cache.misses > 0


async def forget_everything(cache: TailCache) -> None:
    cache._entries.clear()
    cache.bytes = 0
