"""A producer. It sends its messages in order, and those without a receipt again over each new connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from heliograph.actors.broker.producers.producer import PublishRequest, TopicProducer
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import HeliographError
from heliograph.protocol import pulsar_pb2 as pb
from tests.simulation.topic.keeping import encoded
from tests.simulation.topic.scene import Client, Link, Scene

CLOCKS_OFF_MS = (0, 0, -20_000, 20_000, 365 * 86_400_000)  # of producers, as wrong as clocks are
IN_FLIGHT_MAX = 8
PATIENCE_MS = 2_500  # without a receipt, after which it connects again
PAUSE_MS = 100
DELETIONS = 0.25  # of the messages of a topic that is compacted
KEYS = ("red", "green", "blue", "black", "white")


@dataclass(slots=True)
class Message:
    """An entry of one or several messages with the sequence ids ``first`` to ``last``."""

    number: int
    first: int
    last: int
    section: bytes


class SimulatedProducer(Client):
    """The client of one producer. It connects to the broker that a lookup leads to."""

    def __init__(self, name: str, scene: Scene) -> None:
        super().__init__(name)
        self.scene = scene
        self.world = scene.cluster.world
        self.random = self.world.stream(name)
        self.link = None
        self.is_ready = False
        self.sequence_id = 0  # of the last message
        self.entries = 0
        self.waiting: deque[Message] = deque()  # without a receipt
        self._progress_ms = 0
        self._delaying = self.world.stream(f"{name}|delays")
        self._clock_off_ms = (
            self.world.stream(f"{name}|clock").choice(CLOCKS_OFF_MS) if scene.profile.has_features else 0
        )
        self._compacting = self.world.stream(f"{name}|compaction")
        scene.producers.append(self)
        self._go_on()

    @property
    def is_idle(self) -> bool:
        """Whether every message that it sent has its receipt."""
        return not self.waiting

    def _go_on(self) -> None:
        self.world.after(self.random.randrange(1, self.scene.profile.add_every_ms_max + 1), self._turn, self)

    def _turn(self) -> None:
        if self.link is None:
            self._connect()
        elif self.waiting and self.world.now - self._progress_ms > PATIENCE_MS:
            self._leave()
        elif self.is_ready and self.scene.may_publish() and len(self.waiting) < IN_FLIGHT_MAX:
            for _ in range(self.random.randrange(1, 4) if self.random.random() < self.scene.profile.bursts else 1):
                self._publish()
        self._go_on()

    def _publish(self) -> None:
        self.scene.messages_taken += 1
        count = self.random.choice((1, 1, 3))
        self.entries += 1
        first, last = self.sequence_id + 1, self.sequence_id + count
        self.sequence_id = last
        metadata = pb.MessageMetadata(
            producer_name=self.name,
            sequence_id=first,
            publish_time=self.scene.wall_ms() + self._clock_off_ms,
            partition_key=self.random.choice(KEYS),
        )
        if count > 1:
            metadata.num_messages_in_batch = count
            metadata.highest_sequence_id = last
        if self._delaying.random() < self.scene.profile.delays:
            metadata.deliver_at_time = self.scene.wall_ms() + self._delaying.choice((100, 900, 5_000))
        label = f"{self.name}:{self.entries}"
        keys = [metadata.partition_key, *self._compacting.choices(KEYS, k=count - 1)]
        deletes = [place for place in range(count) if self._compacting.random() < DELETIONS]
        section = encoded(metadata, label, keys, deletes if self.scene.profile.compactions else ())
        message = Message(self.entries, first, last, section)
        if not self.waiting:
            self._progress_ms = self.world.now
        self.waiting.append(message)
        self._send(message)

    def _send(self, message: Message) -> None:
        assert self.link is not None, "it is connected"
        self.scene.checkers.on_publish(self.name, message.number)
        link = self.link
        link.ask(lambda: self._at_broker_send(link, message))

    # -- connection

    def _connect(self) -> None:
        broker = self.scene.broker_for(self.random)
        link = self.link = Link(self.world, self.scene.cluster.network, self, broker)
        self.is_ready = False
        self._progress_ms = self.world.now
        link.on_broken = lambda: self._broken(link)
        link.ask(lambda: self._at_broker_connect(link))
        self.world.after(PATIENCE_MS, lambda: None if self.is_ready else self._broken(link), self)

    def _broken(self, link: Link) -> None:
        if self.link is link:
            self._leave()

    def _leave(self) -> None:
        if self.link is not None:
            self.link.cut()
        self.link = None
        self.is_ready = False

    def _connected(self, link: Link) -> None:
        if self.link is not link:
            return
        self.is_ready = True
        self._progress_ms = self.world.now
        for message in self.waiting:
            self.world.count("message sent again")
            self._send(message)

    def _received(self, link: Link, number: int) -> None:
        if self.link is not link:
            return
        self._progress_ms = self.world.now
        while self.waiting and self.waiting[0].number <= number:
            self.waiting.popleft()

    # -- at the broker

    def _at_broker_connect(self, link: Link) -> None:
        topic = link.broker.topic
        if topic is None or not link.broker.is_serving:
            link.tell(lambda: self._broken(link))
            return
        link.broker.loop.create_task(self._join(link, topic))

    async def _join(self, link: Link, topic: BrokerTopic) -> None:
        end = ProducerEnd(self, link, topic)
        try:
            await topic.admission.admit(end.producer, "simulated")
        except HeliographError as error:
            self.world.note(self.name, "is not admitted:", error)
            link.tell(lambda: self._broken(link))
            return
        if link.is_broken:
            end.gone()
            return
        link.on_gone = end.gone
        self._ends[link] = end
        link.tell(lambda: self._connected(link))

    def _at_broker_send(self, link: Link, message: Message) -> None:
        end = self._ends.get(link)
        if end is not None and not end.producer.is_closed:
            end.numbers[message.first] = message.number
            entry = TopicEntry.read(message.section, check=True)
            send = PublishRequest(end.producer, message.first, message.last, entry.messages, len(message.section))
            end.topic.admission.send(entry, send)

    @property
    def _ends(self) -> dict[Link, ProducerEnd]:
        return self.scene.producer_ends


class ProducerEnd:
    """The broker's end of a producer's connection, a ProducerChannel."""

    peer = client_version = "simulated"

    def __init__(self, client: SimulatedProducer, link: Link, topic: BrokerTopic) -> None:
        self.client = client
        self.link = link
        self.topic = topic
        self.producer = TopicProducer(1, client.name, 0, self)
        self.numbers: dict[int, int] = {}  # first sequence id of an entry -> its number
        self._checkers = client.scene.checkers

    def receipt(self, producer: TopicProducer, sequence_id: int, highest: int, position: Position) -> None:
        number = self.numbers[sequence_id]
        self._checkers.on_receipt(self.link.broker, self.link, self.client.name, number, position)
        self.link.tell(lambda: self.client._received(self.link, number))

    def settled(self, producer: TopicProducer, size: int) -> None:
        """Do nothing: the connection has no bound on bytes."""

    def probe(self) -> None:
        """Notice that the client has another connection now."""
        if self.client.link is not self.link:
            self.link.broker.loop.call_soon(self.gone)

    def gone(self) -> None:
        """Remove the client: the connection is broken."""
        self.topic.admission.producers.remove(self.producer)

    def throttle(self, seconds: float) -> None:
        """Do nothing: the topic has no rate limits."""

    def send_refused(self, producer: TopicProducer, sequence_id: int, error: HeliographError) -> None:
        """Do nothing: every message of the producer is acceptable."""

    def send_failed(self, producer: TopicProducer, error: HeliographError, sequence_id: int) -> None:
        """Do nothing: no disk is full."""

    def became_ready(self, producer: TopicProducer) -> None:
        """Do nothing: the producer shares the topic and never waits."""

    def refused(self, producer: TopicProducer, error: HeliographError) -> None:
        """Do nothing: the producer never waits for the topic."""

    def close_producer(self, producer: TopicProducer) -> None:
        producer.is_closed = True
        self.link.tell(lambda: self.client._broken(self.link))
