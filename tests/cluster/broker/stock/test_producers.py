"""Producers of the stock client: deduplication, access modes, termination, limits and quotas."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from heliograph.actors.broker.protocol.producer_commands import ProducerCommands
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import ProducerBusyError, ProducerFencedError, TopicTerminatedError
from heliograph.client.aio.client import AsyncClient
from heliograph.client.options import ClientOptions
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, wait_for

EARLIEST = pulsar.InitialPosition.Earliest
Mode = pulsar.ProducerAccessMode
RECEIVE_MS = 60_000
NOT_STORED = (-1, -1)
CLUSTER: dict[str, Any] = {"brokers": 2, "deduplication": True, "deduplication_snapshot_entries": 10}


def topic_of(cluster: BrokerCluster, name: str) -> BrokerTopic:
    found = cluster.owner_of(name).broker.topics.find(TopicName.parse(name))
    assert found is not None
    return found


def policies(cluster: BrokerCluster, name: str, **changes: object) -> None:
    """Change the policies of one topic, and wait until its owner applies them."""
    topic = topic_of(cluster, name)

    async def apply() -> None:
        topic.apply_policies(replace(topic.policies, **changes))  # type: ignore[arg-type]

    cluster.run(apply())


def place(message_id: pulsar.MessageId) -> tuple[int, int]:
    return message_id.ledger_id(), message_id.entry_id()


def contents(client: pulsar.Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(RECEIVE_MS).data())
    reader.close()
    return found


def fails_over(cluster: BrokerCluster, topic: str) -> None:
    """The topic's owner dies as from a SIGKILL, and its next incarnation serves on the same port."""
    cluster.crash_and_restart(cluster.owner_of(topic))


def test_what_was_sent_before_is_not_stored_again(cluster: BrokerCluster, client: pulsar.Client) -> None:
    producer = client.create_producer("dedup", "me", batching_enabled=False)
    for number in range(25):
        assert place(producer.send(b"%d" % number, sequence_id=number * 10)) != NOT_STORED
    assert place(producer.send(b"again", sequence_id=240)) == NOT_STORED
    assert place(producer.send(b"older", sequence_id=7)) == NOT_STORED
    producer.close()
    fails_over(cluster, "dedup")
    producer = client.create_producer("dedup", "me", batching_enabled=False)
    assert producer.last_sequence_id() == 240
    assert place(producer.send(b"again", sequence_id=240)) == NOT_STORED
    assert place(producer.send(b"25", sequence_id=250)) != NOT_STORED
    producer.close()
    other = client.create_producer("dedup", "another", batching_enabled=False)
    assert other.last_sequence_id() == -1
    assert place(other.send(b"26", sequence_id=0)) != NOT_STORED
    other.close()
    assert contents(client, "dedup") == [b"%d" % number for number in range(27)]
    stats = cluster.run(cluster.admin.topic_stats("dedup"))
    assert stats["deduplicationStatus"] == "Enabled"
    assert list(stats["subscriptions"]) == []


def test_batches_and_chunks_are_told_apart(cluster: BrokerCluster, client: pulsar.Client) -> None:
    batches = client.create_producer("dedup-batches", "me", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(5):
        batches.send_async(b"%d" % number, lambda result, message_id: None)
    batches.flush()
    batches.close()
    chunks = client.create_producer("dedup-batches", "me", chunking_enabled=True, batching_enabled=False)
    assert chunks.last_sequence_id() == 4
    large = b"abcdefgh" * (6 << 17)  # 6 MiB, two chunks
    assert place(chunks.send(large)) != NOT_STORED
    chunks.close()
    fails_over(cluster, "dedup-batches")
    chunks = client.create_producer("dedup-batches", "me", chunking_enabled=True, batching_enabled=False)
    assert chunks.last_sequence_id() == 5
    assert place(chunks.send(large, sequence_id=5)) == NOT_STORED
    assert place(chunks.send(b"6")) != NOT_STORED
    chunks.close()
    assert contents(client, "dedup-batches") == [b"0", b"1", b"2", b"3", b"4", large, b"6"]


def test_deduplication_is_switched_while_clients_are_connected(cluster: BrokerCluster, client: pulsar.Client) -> None:
    producer = client.create_producer("switched", "me", batching_enabled=False)
    producer.send(b"0", sequence_id=5)
    policies(cluster, "switched", deduplication=False)
    wait_for(lambda: topic_of(cluster, "switched").admission.dedup.current is None, "deduplication to be off")
    assert place(producer.send(b"1", sequence_id=5)) != NOT_STORED
    policies(cluster, "switched", deduplication=True)
    wait_for(lambda: topic_of(cluster, "switched").admission.dedup.current is not None, "deduplication to be on")
    assert place(producer.send(b"2", sequence_id=6)) != NOT_STORED
    assert place(producer.send(b"3", sequence_id=6)) == NOT_STORED
    producer.close()
    assert contents(client, "switched") == [b"0", b"1", b"2"]


def test_a_failover_under_load_stores_everything_once(cluster: BrokerCluster, client: pulsar.Client) -> None:
    producer = client.create_producer(
        "load", "me", batching_enabled=False, send_timeout_millis=0, block_if_queue_full=True, max_pending_messages=500
    )
    outcomes: list[pulsar.Result] = []
    count = 3_000
    for number in range(count):
        producer.send_async(b"%d" % number, lambda result, message_id: outcomes.append(result))
        if number in (1_000, 2_000):
            fails_over(cluster, "load")
    producer.flush()
    assert outcomes == [pulsar.Result.Ok] * count
    producer.close()
    assert contents(client, "load") == [b"%d" % number for number in range(count)]


def test_trimming_leaves_what_a_takeover_has_to_read(cluster: BrokerCluster, client: pulsar.Client) -> None:
    producer = client.create_producer("trimmed", "me", batching_enabled=False)
    producer.send(b"first")
    policies(cluster, "trimmed", ledger_entries_max=5, retention_seconds=0, deduplication_snapshot_entries=10_000)
    for _ in range(30):
        producer.send(b"x")
    ledgers = topic_of(cluster, "trimmed").ledger
    wait_for(lambda: len(ledgers.chain.ledger_ids) > 5, "ledgers")
    assert cluster.run(topic_of(cluster, "trimmed").trim()) == 0  # no cursor needs them
    policies(cluster, "trimmed", deduplication_snapshot_entries=10)
    wait_for(lambda: len(ledgers.chain.ledger_ids) <= 2, "a snapshot, and trimming behind it")
    producer.close()
    fails_over(cluster, "trimmed")
    producer = client.create_producer("trimmed", "me")
    assert producer.last_sequence_id() == 30
    producer.close()


async def test_our_client_numbers_its_messages(cluster: BrokerCluster) -> None:
    async with AsyncClient(ClientOptions((cluster.brokers[-1].broker.service_url,))) as client:
        producer = client.producer("numbered", name="me", initial_sequence_id=41)
        ids = await producer.send_many([b"0", b"1", b"2"])
        assert producer.last_sequence_id == 44
        await producer.close()
        again = client.producer("numbered", name="me", initial_sequence_id=41)
        repeated = await again.send_many([b"0", b"1", b"2"])
        assert {(one.ledger_id, one.entry_id) for one in repeated} == {NOT_STORED}
        await again.close()
        goes_on = client.producer("numbered", name="me")
        await goes_on.open()
        assert goes_on.last_sequence_id == 44
        assert (await goes_on.send(b"3")) > ids[-1]
        reader = await client.reader("numbered", "earliest").open()
        found: list[bytes] = []
        while len(found) < 4:
            found += [message.value for message in await reader.receive_many(10, 60)]
        assert found == [b"0", b"1", b"2", b"3"]
        with pytest.raises(ProducerFencedError):
            await client.producer("numbered", access_mode="exclusive").open()


@pytest.mark.parametrize("compression", list(pulsar.CompressionType.__members__.values()), ids=lambda one: one.name)
def test_what_is_compressed_or_encrypted_passes(
    client: pulsar.Client, keys: pulsar.CryptoKeyReader, compression: pulsar.CompressionType
) -> None:
    topic = f"opaque-{compression.name}"
    consumer = client.subscribe(topic, "sub", crypto_key_reader=keys)
    blind = client.subscribe(topic, "blind", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
    for is_batched in (False, True):
        producer = client.create_producer(
            topic,
            compression_type=compression,
            batching_enabled=is_batched,
            encryption_key="key",
            crypto_key_reader=keys,
        )
        for number in range(10):
            producer.send_async(b"secret %d" % number * 20, lambda result, message_id: None)
        producer.flush()
        producer.close()
        for number in range(10):
            assert consumer.receive(RECEIVE_MS).data() == b"secret %d" % number * 20
        assert b"secret" not in blind.receive(RECEIVE_MS).data()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder = tmp_path_factory.mktemp("keys")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "private.pem").write_bytes(
        private.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)
    return pulsar.CryptoKeyReader(str(folder / "public.pem"), str(folder / "private.pem"))


def test_an_exclusive_producer_keeps_others_out(cluster: BrokerCluster, client: pulsar.Client) -> None:
    owner = client.create_producer("exclusive", "owner", access_mode=Mode.Exclusive)
    owner.send(b"0")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("exclusive")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer("exclusive", access_mode=Mode.Exclusive)
    with pytest.raises(ProducerBusyError):
        cluster.run(cluster.admin.publish("exclusive", [b"from inside"]))
    stats = cluster.run(cluster.admin.topic_stats("exclusive"))
    assert [one["accessMode"] for one in stats["publishers"]] == ["Exclusive"]
    assert stats["topicEpoch"] == 0
    owner.close()
    shared = client.create_producer("exclusive")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer("exclusive", access_mode=Mode.Exclusive)
    shared.send(b"1")
    shared.close()
    client.create_producer("exclusive", access_mode=Mode.Exclusive).close()
    assert topic_of(cluster, "exclusive").ledger.record.properties["topic_epoch"] == "1"


def test_a_producer_waits_for_its_turn(cluster: BrokerCluster, client: pulsar.Client) -> None:
    first = client.create_producer("waiting", access_mode=Mode.WaitForExclusive)
    first.send(b"0")
    turns: list[str] = []
    waiting: list[Waiting] = []
    for name in ("second", "third"):
        future = Waiting(client, "waiting", name, turns)
        wait_for(lambda: len(topic_of(cluster, "waiting").admission.producers.access.waiting) > len(waiting), "a line")
        waiting.append(future)
    assert turns == []
    first.close()
    waiting[0].producer().send(b"1")
    assert turns == ["second"]
    waiting[0].producer().close()
    waiting[1].producer().send(b"2")
    assert turns == ["second", "third"]
    waiting[1].producer().close()
    assert contents(client, "waiting") == [b"0", b"1", b"2"]


class Waiting:
    """A producer that is created in the background."""

    def __init__(self, client: pulsar.Client, topic: str, name: str, turns: list[str]) -> None:
        def create() -> pulsar.Producer:
            producer = client.create_producer(topic, name, access_mode=Mode.WaitForExclusive)
            turns.append(name)
            return producer

        self._future = ThreadPoolExecutor(1).submit(create)

    def producer(self) -> pulsar.Producer:
        return self._future.result(120)


def test_a_fencing_producer_throws_others_out(cluster: BrokerCluster, client: pulsar.Client) -> None:
    old = client.create_producer("fenced", "old", access_mode=Mode.Exclusive, send_timeout_millis=60_000)
    old.send(b"0")
    new = client.create_producer("fenced", "new", access_mode=Mode.ExclusiveWithFencing)
    new.send(b"1")
    with pytest.raises(pulsar.PulsarException):
        old.send(b"never")
    fails_over(cluster, "fenced")
    new.send(b"2")  # it comes back with its epoch, and is let in
    with pytest.raises(pulsar.PulsarException):
        old.send(b"never")
    new.close()
    assert contents(client, "fenced") == [b"0", b"1", b"2"]


def test_a_terminated_topic_is_read_to_its_end(cluster: BrokerCluster, client: pulsar.Client) -> None:
    producer = client.create_producer("ended", send_timeout_millis=60_000)
    consumer = client.subscribe("ended", "sub")
    last = [producer.send(b"%d" % number) for number in range(10)][-1]
    name = "persistent://public/default/ended"
    ended = {name: f"{last.ledger_id()}:{last.entry_id()}"}
    assert cluster.run(cluster.admin.terminate_topic("ended")) == ended
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("ended")
    subscription = topic_of(cluster, "ended").subscriptions["sub"]
    keys = list(subscription.consumers)
    for number in range(10):
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    wait_for(lambda: subscription.backlog == 0, "acknowledgements")
    assert place(consumer.get_last_message_id()) == place(last)
    assert list(subscription.consumers) == keys  # it was not made to reconnect
    fails_over(cluster, "ended")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("ended")
    assert contents(client, "ended") == [b"%d" % number for number in range(10)]
    assert cluster.run(cluster.admin.terminate_topic("ended")) == ended


async def test_our_client_learns_that_a_topic_ended(cluster: BrokerCluster) -> None:
    async def end() -> None:
        await cluster.admin.terminate_topic("ending")

    async with AsyncClient(ClientOptions((cluster.brokers[-1].broker.service_url,))) as client:
        producer = client.producer("ending")
        consumer = await client.consumer("ending", "sub").open()
        reader = await client.reader("ending", "earliest").open()
        await producer.send(b"0")
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end(), cluster.loop))
        with pytest.raises(TopicTerminatedError):
            await producer.send(b"1")
        assert (await reader.receive(60)).value == b"0"
        with pytest.raises(TopicTerminatedError):
            await reader.receive(60)
        await consumer.ack(await consumer.receive(60))
        with pytest.raises(TopicTerminatedError):
            await consumer.receive(60)
        assert consumer.has_reached_end


def test_a_topic_has_as_many_producers_as_it_may(cluster: BrokerCluster, client: pulsar.Client) -> None:
    first = client.create_producer("few")
    policies(cluster, "few", max_producers=1)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("few")
    first.close()
    client.create_producer("few").close()


def test_an_entry_above_the_limit_of_its_topic_fails_alone(cluster: BrokerCluster, client: pulsar.Client) -> None:
    producer = client.create_producer("small", batching_enabled=False)
    producer.send(b"0")
    policies(cluster, "small", max_message_bytes=1_000)
    outcomes: list[pulsar.Result] = []
    for payload in (b"1", b"x" * 2_000, b"2"):
        producer.send_async(payload, lambda result, message_id: outcomes.append(result))
    producer.flush()
    assert outcomes == [pulsar.Result.Ok, pulsar.Result.ChecksumError, pulsar.Result.Ok]
    producer.close()
    assert contents(client, "small") == [b"0", b"1", b"2"]


def test_a_rate_limit_slows_producers_down(cluster: BrokerCluster, client: pulsar.Client) -> None:
    producer = client.create_producer("slow", batching_enabled=False, max_pending_messages=10_000)
    producer.send(b"first")
    rate = 50
    policies(cluster, "slow", publish_messages_per_second=rate)
    for number in range(2 * rate):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    channel = topic_of(cluster, "slow").producers[producer.producer_name()].channel
    assert isinstance(channel, ProducerCommands)
    wait_for(lambda: channel.connection.is_throttled, "the socket to be read no more")
    producer.flush()
    producer.close()
    assert len(contents(client, "slow")) == 2 * rate + 1


def test_a_backlog_above_its_quota_holds_producers(cluster: BrokerCluster, client: pulsar.Client) -> None:
    consumer = client.subscribe("held", "sub")
    producer = client.create_producer("held", batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number + b"x" * 1_000)
    policies(cluster, "held", backlog_quota_bytes=10_000)
    wait_for(lambda: not topic_of(cluster, "held").producers, "the producer to be disconnected")
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededError):
        client.create_producer("held")
    sent: list[pulsar.Result] = []
    producer.send_async(b"held", lambda result, message_id: sent.append(result))
    for _ in range(20):
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    wait_for(lambda: sent == [pulsar.Result.Ok], "the held message to be sent")
    producer.close()


def test_a_backlog_above_its_quota_tells_producers_off(cluster: BrokerCluster, client: pulsar.Client) -> None:
    client.subscribe("told-off", "sub")
    producer = client.create_producer("told-off", batching_enabled=False)
    producer.send(b"x" * 1_000)
    policies(cluster, "told-off", backlog_quota_seconds=0, backlog_quota_action="producer_exception")
    wait_for(lambda: not topic_of(cluster, "told-off").producers, "the producer to be disconnected")
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        client.create_producer("told-off")
    producer.close()


def test_a_backlog_above_its_quota_is_evicted(cluster: BrokerCluster, client: pulsar.Client) -> None:
    consumer = client.subscribe("evicted", "sub", receiver_queue_size=1)
    producer = client.create_producer("evicted", batching_enabled=False)
    for number in range(40):
        producer.send(b"%03d" % number + b"x" * 1_000)
    action = "consumer_backlog_eviction"
    policies(cluster, "evicted", backlog_quota_bytes=20_000, backlog_quota_action=action)
    subscription = topic_of(cluster, "evicted").subscriptions["sub"]
    wait_for(lambda: subscription.backlog < 20, "the eviction")
    assert topic_of(cluster, "evicted").admission.quota.backlog_bytes <= 20_000
    kept = subscription.backlog
    producer.send(b"newest")
    producer.close()
    found = [consumer.receive(RECEIVE_MS).data()[:3] for _ in range(3)]
    assert found[-1] > b"%03d" % (39 - kept)
