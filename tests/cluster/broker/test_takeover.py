"""Takeover by another broker: nothing acknowledged is lost, order holds, confirmed acks last (I1, I11-I13)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

import heliograph
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.producers.producer import PublishRequest
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import Publication, TopicEntry
from heliograph.actors.broker.topic.admission import PublishAdmission
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.protocol import entry as codec
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster, wait_for

RECEIVE_MS = 60_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, brokers=2, ledger_entries_max=400) as running:
        yield running


class Publishing:
    """A stock producer in a thread that sends numbers, pipelined, until it is told to stop."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.confirmed: list[int] = []
        self.failed: list[int] = []
        self._producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=50)
        self._stop = threading.Event()
        self._sent = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.send_async(b"%d" % self._sent, self._note(self._sent))
            self._sent += 1
        self._producer.flush()

    def _note(self, number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def note(result: pulsar.Result, _: pulsar.MessageId) -> None:
            (self.confirmed if result == pulsar.Result.Ok else self.failed).append(number)

        return note

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def first_seen(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def read_all(client: pulsar.Client, topic: str) -> list[int]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    numbers = []
    while reader.has_message_available():
        numbers.append(int(reader.read_next(RECEIVE_MS).data()))
    return numbers


@pytest.mark.parametrize("end", ["crash", "stop"])
def test_publishing_goes_on_in_order_at_another_broker(cluster: BrokerCluster, end: str) -> None:
    with cluster.client() as client:
        publishing = Publishing(client, "flow")
        wait_for(lambda: len(publishing.confirmed) > 1_000, "publishes at the first broker")
        owner = cluster.owner_of("flow")
        (cluster.crash if end == "crash" else cluster.stop_broker)(owner)
        before = len(publishing.confirmed)
        wait_for(lambda: len(publishing.confirmed) > before + 1_000, "publishes at the second broker")
        publishing.stop()
        assert publishing.failed == []
        assert publishing.confirmed == sorted(publishing.confirmed)  # I2
        numbers = read_all(client, "flow")
    # A client sends again what it has no receipt for, so some may be there twice; each first time is in order.
    assert first_seen(numbers) == list(range(max(numbers) + 1))  # I12
    assert set(publishing.confirmed) <= set(numbers)  # I1


def test_a_chunk_whose_receipt_was_lost_is_not_stored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stock producer sends it again to the next owner, and a stock consumer drops the message if it comes twice."""
    confirmed, send = PublishRequest.confirmed, PublishAdmission.send
    arrived: list[TopicEntry] = []
    stored: list[Position] = []

    def seven(self: PublishAdmission, entry: TopicEntry, request: PublishRequest) -> None:
        arrived.append(entry)
        if len(arrived) <= 7:  # the others are still under way when the broker dies
            send(self, entry, request)

    def without_receipt(self: PublishRequest, position: Position) -> None:
        stored.append(position)
        if len(stored) <= 4:
            confirmed(self, position)

    with (
        broker_cluster(tmp_path, brokers=2, options={"max_message_bytes": 64 << 10}, deduplication=True) as cluster,
        cluster.client() as client,
    ):
        producer = client.create_producer("chunks", producer_name="p", chunking_enabled=True)
        body = b"%07d " * (64 << 10) % tuple(range(64 << 10))
        with monkeypatch.context() as patch:
            patch.setattr(PublishRequest, "confirmed", without_receipt)
            patch.setattr(PublishAdmission, "send", seven)
            sending = threading.Thread(target=producer.send, args=(body,))
            sending.start()
            wait_for(lambda: len(stored) == 7, "stores chunks without a receipt")
            cluster.crash(cluster.owner_of("chunks"))
        sending.join()
        consumer = client.subscribe("chunks", "sub", initial_position=pulsar.InitialPosition.Earliest)
        assert consumer.receive(RECEIVE_MS).data() == body  # stock consumers drop it for ever otherwise
        producer.send(b"behind")
        assert consumer.receive(RECEIVE_MS).data() == b"behind"
        topic = cluster.owner_of("chunks").broker.topics.find(TopicName.parse("chunks"))
        assert topic is not None
        entries = cluster.run(topic.reader.read(topic.ledger.chain.first, 100, 1 << 30))
        chunks = [codec.metadata_of(entry.payload).chunk_id for _, entry in entries if entry.chunk_uuid is not None]
    assert chunks == list(range(len(chunks)))


def test_a_clean_stop_repeats_nothing(cluster: BrokerCluster) -> None:
    with cluster.client() as client:
        publishing = Publishing(client, "clean")
        wait_for(lambda: len(publishing.confirmed) > 500, "publishes at the first broker")
        cluster.stop_broker(cluster.owner_of("clean"))
        before = len(publishing.confirmed)
        wait_for(lambda: len(publishing.confirmed) > before + 500, "publishes at the second broker")
        publishing.stop()
        numbers = read_all(client, "clean")
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("end", ["crash", "stop"])
def test_confirmed_acknowledgements_stick(cluster: BrokerCluster, end: str) -> None:
    """Our client waits for ACK_RESPONSE, which means durable (I11)."""

    async def publish_and_acknowledge() -> None:
        async with await heliograph.connect_async(cluster.service_url) as client:
            consumer = client.consumer("acks", "sub", type="shared", initial_position="earliest")
            producer = client.producer("acks")
            for n in range(40):
                await producer.send(b"%d" % n)
            messages = [await consumer.receive(60) for _ in range(40)]
            await consumer.ack_many(messages[::2])

    asyncio.run(publish_and_acknowledge())
    owner = cluster.owner_of("acks")
    (cluster.crash if end == "crash" else cluster.stop_broker)(owner)
    with cluster.client() as client:
        consumer = client.subscribe("acks", "sub", pulsar.ConsumerType.Shared)
        again = [int(consumer.receive(RECEIVE_MS).data()) for _ in range(20)]
        assert sorted(again) == list(range(1, 40, 2))
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)


def test_consumers_follow_to_the_new_owner(cluster: BrokerCluster) -> None:
    with cluster.client() as client:
        consumer = client.subscribe("follow", "sub")
        producer = client.create_producer("follow")
        for n in range(10):
            producer.send(b"%d" % n)
            consumer.acknowledge_cumulative(consumer.receive(RECEIVE_MS))
        cluster.crash(cluster.owner_of("follow"))
        for n in range(10, 20):
            producer.send(b"%d" % n)
        numbers: list[int] = []
        while 19 not in numbers:
            numbers.append(int(consumer.receive(RECEIVE_MS).data()))
    assert [n for n in first_seen(numbers) if n >= 10] == list(range(10, 20))


def test_a_broker_without_session_confirms_nothing(cluster: BrokerCluster) -> None:
    """The old owner still has its connections to the bookies; only its session is gone (I13)."""
    with cluster.client() as client:
        client.create_producer("zombie").send(b"0")
        owner = cluster.owner_of("zombie")
        topic = owner.broker.topics.find(TopicName.parse("zombie"))
        assert topic is not None

        async def lose_session() -> None:
            cluster.metadata.expire_session(owner.store.session_id)
            topic.publish(TopicEntry(b"1", 1, False, False, None, False, 0, b""), outcome)

        outcome = Outcome()
        cluster.run(lose_session())
        assert outcome.position is None
        assert isinstance(outcome.error, ServiceNotReadyError)
        assert owner.broker.ownership.is_lost
        cluster.crash(owner)
        assert read_all(client, "zombie") == [0]


class Outcome(Publication):
    def __init__(self) -> None:
        self.position: Position | None = None
        self.error: HeliographError | None = None

    def confirmed(self, position: Position) -> None:
        self.position = position

    def failed(self, error: HeliographError) -> None:
        self.error = error

    def delayed(self, error: HeliographError) -> None:
        self.failed(error)


def test_a_frozen_owner_is_fenced_out(cluster: BrokerCluster) -> None:
    """The old owner does not know that its session is gone: bookies refuse its entries (I13)."""
    with cluster.client() as client:
        client.create_producer("frozen").send(b"0")
        owner = cluster.owner_of("frozen")
        topic = owner.broker.topics.find(TopicName.parse("frozen"))
        assert topic is not None
        owner.store._clock._listeners.clear()  # it is frozen and receives nothing
        owner.is_gone = True
        cluster.metadata.expire_session(owner.store.session_id)
        with cluster.client() as other:
            other.create_producer("frozen").send(b"1")
        outcome = Outcome()

        async def publish() -> None:
            topic.publish(TopicEntry(b"2", 1, False, False, None, False, 0, b""), outcome)

        cluster.run(publish())
        wait_for(lambda: outcome.error is not None, "the fenced publish to fail")
        assert outcome.position is None
        with cluster.client() as other:
            assert read_all(other, "frozen") == [0, 1]
        owner.is_gone = False


def test_a_new_incarnation_takes_over_at_once(cluster: BrokerCluster) -> None:
    with cluster.client() as client:
        client.create_producer("again").send(b"0")
        owner = cluster.owner_of("again")
        name, port = owner.broker.config.broker_id, int(owner.broker.service_url.rpartition(":")[2])
        cluster.run(release_port(owner.broker))
        cluster.start_broker(name, port=port)
        wait_for(lambda: owner.broker.ownership.is_lost, "the predecessor's session to end")
        cluster.crash(owner)
        client.create_producer("again").send(b"1")
        assert read_all(client, "again") == [0, 1]


async def release_port(broker: Broker) -> None:
    await broker._server.stop()


def test_a_lost_bookie_stops_nobody(tmp_path: Path) -> None:
    with broker_cluster(tmp_path, bookies=4, brokers=1) as cluster, cluster.client() as client:
        publishing = Publishing(client, "bookie")
        wait_for(lambda: len(publishing.confirmed) > 500, "publishes")
        cluster.run(cluster.bookies.pop(0).stop())
        before = len(publishing.confirmed)
        wait_for(lambda: len(publishing.confirmed) > before + 500, "publishes with three bookies")
        publishing.stop()
        assert publishing.failed == []
        assert read_all(client, "bookie") == list(range(len(publishing.confirmed)))
