"""A reader: a consumer of a subscription that is not durable, and ends with its connection.

It names the last entry that it had when it connects again, to the same broker or to another one, and drops what it had.
"""

from __future__ import annotations

from typing import Any, cast

from typing_extensions import override

from heliograph.actors.broker.protocol.subscribe_options import index_of
from heliograph.actors.broker.records.position import EARLIEST, Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import ConsumerBusyError, HeliographError
from tests.simulation.topic.consumer import PATIENCE_MS, PERMITS, ConsumerEnd
from tests.simulation.topic.history import NOWHERE, Ack
from tests.simulation.topic.keeping import label_of
from tests.simulation.topic.scene import Client, Link, Scene

LEAVES = 0.04  # of its turns
ACKNOWLEDGES = 0.3  # of what it gets; readers do, so that the broker counts what is left for them


class SimulatedReader(Client):
    """The client of one reader.

    Attributes:
        last: the last entry that it had; NOWHERE: it begins with the oldest.
        read: the entries that it had, in order, and what each is called.
    """

    def __init__(self, name: str, scene: Scene) -> None:
        super().__init__(name)
        self.subscription = name
        self.scene = scene
        self.world = scene.cluster.world
        self.random = self.world.stream(name)
        self.link = None
        self.is_ready = False
        self.last = NOWHERE
        self.read: list[tuple[Position, str]] = []
        self.away_until = 0
        scene.readers.append(self)
        self._turn()

    def _turn(self) -> None:
        link = self.link
        if link is None:
            if self.world.now >= self.away_until:
                self._connect()
        elif self.is_ready and not self.scene.network.is_healed and self.random.random() < LEAVES:
            self.away_until = self.world.now + self.random.choice((0, 10, 600))
            link.cut()
            self.link = None
        self.world.after(50 + self.random.randrange(150), self._turn, self)

    def _connect(self) -> None:
        link = self.link = Link(
            self.world, self.scene.cluster.network, self, self.scene.broker_for(self.random, is_consumer=True)
        )
        self.is_ready = False
        start = EARLIEST if self.last == NOWHERE else self.last
        link.on_broken = lambda: self._broken(link)
        link.ask(lambda: self._at_broker(link, start))
        self.world.after(PATIENCE_MS, lambda: None if self.is_ready else self._broken(link), self)

    def _broken(self, link: Link) -> None:
        if self.link is link:
            link.cut()
            self.link = None

    def _connected(self, end: ReaderEnd) -> None:
        if self.link is end.link:
            self.is_ready = True
            end.link.ask(lambda: end.flow(PERMITS))

    def _pushed(self, end: ReaderEnd, position: Position, entry: TopicEntry) -> None:
        if self.link is not end.link:
            return
        if position > self.last:
            label = label_of(bytes(entry.payload))
            self.scene.checkers.on_read(self.name, self.last, position, label)
            self.read.append((position, label))
            self.last = position
        slow = 1_500 if self.random.random() < 0.03 else 60
        self.world.after(self.random.randrange(slow), lambda: self._handled(end, position, entry.messages), self)

    def _handled(self, end: ReaderEnd, position: Position, messages: int) -> None:
        if self.link is end.link:
            end.link.ask(lambda: end.flow(messages))
            if self.random.random() < ACKNOWLEDGES:
                end.link.ask(lambda: end.acknowledge(Ack(position, 0, is_cumulative=True)))

    # -- at the broker

    def _at_broker(self, link: Link, start: Position) -> None:
        topic = link.broker.topic
        if topic is None or not link.broker.is_serving:
            link.tell(lambda: self._broken(link))
        else:
            link.broker.loop.create_task(self._subscribe(link, topic, start))

    async def _subscribe(self, link: Link, topic: BrokerTopic, start: Position) -> None:
        subscription: Subscription | None = None
        try:
            index = await index_of(topic.ledger.chain, start)
            subscription = await topic.subscribe(self.name, start=index, is_durable=False)
            if link.is_broken:
                topic.drop_if_idle(subscription)
                return
            end = ReaderEnd(self, link, topic, subscription)
            try:
                subscription.add_consumer(end.consumer, SubscriptionType.EXCLUSIVE)
            except ConsumerBusyError:
                for rival in subscription.holders(end.consumer, SubscriptionType.EXCLUSIVE):
                    rival.probe()
                raise
        except HeliographError as error:
            self.world.note(self.name, "cannot read:", error)
            if subscription is not None:
                topic.drop_if_idle(subscription)
            link.tell(lambda: self._broken(link))
            return
        link.on_gone = end.gone
        link.tell(lambda: self._connected(end))


class ReaderEnd(ConsumerEnd):
    """The broker's end of a reader's connection. Its subscription ends with it."""

    def __init__(self, reader: SimulatedReader, link: Link, topic: BrokerTopic, subscription: Subscription) -> None:
        super().__init__(cast(Any, reader), link, subscription)
        self._reader = reader
        self._topic = topic

    @override
    def push(
        self,
        consumer: SubscriptionConsumer,
        position: Position,
        entry: TopicEntry,
        redelivery_count: int,
        bits: int | None,
        is_alone: bool,
        crashes: int,
        lone_crashes: int = 0,
    ) -> None:
        self._checkers.on_reader_push(self.link.broker, self._reader.name, position)
        self.link.tell(lambda: self._reader._pushed(self, position, entry))

    @override
    def acknowledge(self, ack: Ack, is_plain: bool = False) -> None:
        if not self._is_closed:
            self.subscription.acknowledge_cumulative(ack.position, None)

    @override
    def gone(self) -> None:
        super().gone()
        self._topic.drop_if_idle(self.subscription)
