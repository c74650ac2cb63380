"""Clients of topics that are deleted: producers and consumers that reconnect, and an administrator."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import cast

from typing_extensions import override

from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import ConflictError, HeliographError, NotFoundError, TopicExistsError
from heliograph.protocol.topic_name import TopicName
from tests.simulation.deletion.broker import DeletingBroker
from tests.simulation.deletion.checkers import (
    NAMESPACE,
    NAMESPACE_PATH,
    PARTITIONED,
    PARTITIONED_PATH,
    PLAIN,
    PLAIN_PATH,
    DeletionCheckers,
)
from tests.simulation.topic.consumer import SimulatedConsumer
from tests.simulation.topic.loop import EXPECTED_ERRORS
from tests.simulation.topic.producer import SimulatedProducer
from tests.simulation.topic.scene import Client, Link, Scene

MANY, ORDERS = TopicName.parse(PARTITIONED), TopicName.parse(PLAIN)
PARTITIONS = 2
CALL_MS_MAX = 5_000  # for which the administrator waits, before it asks another broker
GIVES_UP = 0.3  # of its calls that failed: the sweep has to finish them


async def find(link: Link, topic: TopicName, random: Random) -> BrokerTopic | None:
    """Return the topic, or a partition of it, that a client uses; None if it is refused."""
    broker = cast(DeletingBroker, link.broker)
    before = broker.marks.state_of(PARTITIONED_PATH)
    number = random.randrange(PARTITIONS + 1)
    try:
        if topic != MANY:
            return await broker.topics.get(topic, may_create=True)
        if number < PARTITIONS and random.random() < 0.5:  # else it knows the topic from before
            partitions = await broker.catalog.auto_partitions(MANY, may_create=True)
            broker.marks.on_found(PARTITIONED_PATH, before)
            number = random.randrange(max(1, partitions))
        return await broker.topics.get(MANY.partitions(PARTITIONS + 1)[number], may_create=True)
    except HeliographError as error:
        if number < PARTITIONS:
            broker.marks.on_refused(PARTITIONED_PATH, before, error)
        broker.world.note(broker.name, "refuses", topic, number, type(error).__name__, error)
        return None


class Producer(SimulatedProducer):
    """A producer of one topic, or of any partition of it."""

    topic: TopicName

    @override
    def _at_broker_connect(self, link: Link) -> None:
        async def join() -> None:
            topic = await find(link, self.topic, self.random)
            if topic is None:
                link.tell(lambda: self._broken(link))
            else:
                await self._join(link, topic)

        link.broker.loop.create_task(join())


class Consumer(SimulatedConsumer):
    """A consumer of one topic, or of any partition of it."""

    topic: TopicName

    @override
    def _at_broker(self, link: Link) -> None:
        async def subscribe() -> None:
            topic = await find(link, self.topic, self.random)
            if topic is None:
                link.tell(lambda: self._broken(link))
            else:
                await self._subscribe(link, topic)

        link.broker.loop.create_task(subscribe())


def make_clients(scene: Scene) -> None:
    """Make the clients of both topics."""
    for number, topic in enumerate((MANY, MANY, ORDERS)):
        Producer(f"producer-{number + 1}", scene).topic = topic
    for number, topic in enumerate((MANY, ORDERS)):
        Consumer(f"consumer-{number + 1}", "shared", SubscriptionType.SHARED, scene).topic = topic


class AdministratorClient(Client):
    """Deletes by force, one thing after the other, and asks again at any broker until it is answered."""

    def __init__(self, scene: Scene, checkers: DeletionCheckers) -> None:
        super().__init__("administrator")
        self.scene = scene
        self.checkers = checkers
        self.world = scene.cluster.world
        self.random = self.world.stream("administrator")
        self.at: DeletingBroker | None = None  # the broker that was asked, while it is
        self.is_over = False
        self.is_idle = True
        self._asked = 0
        self._later()

    def delete(self, path: str, then: Callable[[], None], *, gives_up: bool = False) -> None:
        """Delete a topic or the namespace. Ask until it is gone, then call ``then``."""

        async def work(broker: DeletingBroker) -> None:
            before = self.checkers.state_of(path)
            try:
                if path == NAMESPACE_PATH:
                    await broker.admin.namespaces.delete(NAMESPACE, True)
                else:
                    await broker.admin.delete_topic(str(MANY if path == PARTITIONED_PATH else ORDERS), True)
            except NotFoundError:
                return
            self.checkers.on_confirmed(path, before)

        def failed() -> None:
            if gives_up and self.random.random() < GIVES_UP:
                self.world.count("deletion left to the sweep")
                then()
            else:
                self.world.after(self.random.randrange(1_000), lambda: self.ask(work, then, failed), self)

        self.ask(work, then, failed)

    def create(self, then: Callable[[], None]) -> None:
        """Create the namespace and the partitioned topic, if they are missing."""

        async def work(broker: DeletingBroker) -> None:
            with contextlib.suppress(ConflictError):
                await broker.admin.namespaces.create(NAMESPACE, 1, {"auto_create_partitions": PARTITIONS})
            with contextlib.suppress(TopicExistsError):
                await broker.catalog.create(MANY, PARTITIONS)

        self.ask(work, then, lambda: self.world.after(300, lambda: self.create(then), self))

    def ask(
        self, work: Callable[[DeletingBroker], Awaitable[None]], then: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        """Let a broker do something. Call ``then`` if it says that it is done, else ``failed``."""
        self._asked += 1
        brokers: list[DeletingBroker] = [one for one in self.scene.nemesis.brokers[-3:] if one.is_up]
        if not brokers:
            self.world.after(100, failed, self)
            return
        broker, number = self.random.choice(brokers), self._asked
        link = Link(self.world, self.scene.network, self, broker)
        self.at = broker

        def ended(action: Callable[[], None]) -> None:
            if number == self._asked:
                self._asked += 1
                self.at = None
                action()

        async def run() -> None:
            try:
                await work(broker)
            except EXPECTED_ERRORS as error:
                self.world.note(broker.name, "does not do it:", type(error).__name__, error)
                link.tell(lambda: ended(failed))
            else:
                link.tell(lambda: ended(then))

        link.ask(lambda: broker.loop.create_task(run()))
        self.world.after(CALL_MS_MAX, lambda: ended(failed), self)

    def _later(self) -> None:
        self.is_idle = True
        if not self.is_over:
            self.world.after(self.random.randrange(200, 2_000), self._next, self)

    def _next(self) -> None:
        if self.is_over:
            return
        self.is_idle = False
        kind = self.random.random()
        if kind < 0.3:
            self.create(self._later)
        else:
            path = PARTITIONED_PATH if kind < 0.65 else PLAIN_PATH if kind < 0.8 else NAMESPACE_PATH
            self.delete(path, self._later, gives_up=True)
