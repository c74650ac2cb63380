"""The state that the clients of a run share, and their connections to brokers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.cluster.channel import Channel
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.runner import Cluster
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.profile import Profile
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.checkers import TopicCheckers
from tests.simulation.world import Action, Process, World

if TYPE_CHECKING:
    from tests.simulation.topic.consumer import SimulatedConsumer
    from tests.simulation.topic.producer import ProducerEnd, SimulatedProducer
    from tests.simulation.topic.reader import SimulatedReader

STALE_LOOKUP = 0.15  # how often a client is sent to a broker that may have been replaced
NOTICED_AFTER_MS = 400  # after which each end notices the break


class Scene:
    """The cluster, the clients, and the brokers that lookups lead to."""

    def __init__(
        self, cluster: Cluster, network: Network, profile: Profile, checkers: TopicCheckers, nemesis: Nemesis
    ) -> None:
        self.cluster = cluster
        self.network = network
        self.profile = profile
        self.checkers = checkers
        self.nemesis = nemesis
        self.producers: list[SimulatedProducer] = []
        self.consumers: list[SimulatedConsumer] = []
        self.readers: list[SimulatedReader] = []
        self.producer_ends: dict[Link, ProducerEnd] = {}
        self.messages_taken = 0
        self.messages_max = profile.messages_max
        self._keys = 0
        self._misled: tuple[TopicBroker, int] | None = None  # the broker that lookups lead to, and until when

    @property
    def clients(self) -> list[Client]:
        return [*self.producers, *self.consumers, *self.readers]

    def broker_for(self, random: Random, *, is_consumer: bool = False) -> TopicBroker:
        """Return the broker that a lookup leads to: the newest one, sometimes an older one."""
        if (
            is_consumer
            and self._misled is not None
            and self.cluster.world.now < self._misled[1]
            and random.random() < 0.6
        ):
            return self._misled[0]
        brokers: list[TopicBroker] = list(self.nemesis.brokers)
        if not self.network.is_healed and random.random() < STALE_LOOKUP:
            return random.choice(brokers[-3:])
        return brokers[-1]

    @property
    def seeks(self) -> float:
        """Return how often a consumer seeks, of its turns."""
        return 0.0 if self.network.is_healed else self.profile.seeks

    def wall_ms(self) -> int:
        """Return the wall clock of clients."""
        return self.profile.wall_ms(self.cluster.world.now)

    def mislead(self, broker: TopicBroker, milliseconds: int) -> None:
        """Let most lookups of consumers lead to a broker for a while, whether or not it owns the topic."""
        self._misled = broker, self.cluster.world.now + milliseconds

    def next_key(self) -> int:
        """Return a number for a new consumer of a broker."""
        self._keys += 1
        return self._keys

    def may_publish(self) -> bool:
        """Whether producers have anything to send."""
        return self.messages_taken < self.messages_max


class Client(Process):
    """A client with at most one connection at a time."""

    link: Link | None = None


class Link:
    """One connection. The client calls ``on_broken`` and the broker ``on_gone`` when they notice a break."""

    def __init__(self, world: World, network: Network, client: Client, broker: TopicBroker) -> None:
        self.broker = broker
        self.is_broken = False
        self.on_broken: Action = _nothing
        self.on_gone: Action = _nothing
        self._world = world
        self._client = client
        self._there = Channel(world, network, client, broker, "command")
        self._back = Channel(world, network, broker, client, "command")

    def ask(self, action: Callable[[], object]) -> None:
        """Send an action from the client to the broker."""

        def at_broker() -> None:
            if not self.is_broken:
                self.broker.run(action)

        self._send(self._there, at_broker)

    def tell(self, action: Action) -> None:
        """Send an action from the broker to the client."""

        def at_client() -> None:
            if not self.is_broken:
                action()

        self._send(self._back, at_client)

    def cut(self) -> None:
        """Break the connection."""
        if self.is_broken:
            return
        self.is_broken = True
        self._world.after(NOTICED_AFTER_MS, self._noticed_by_client, self._client)
        self._world.after(NOTICED_AFTER_MS, self._noticed_by_broker, self.broker)

    def _send(self, channel: Channel, action: Callable[[], None]) -> None:
        if not self.is_broken and not channel.send(action):
            self.cut()

    def _noticed_by_client(self) -> None:
        self.on_broken()

    def _noticed_by_broker(self) -> None:
        self.broker.run(self.on_gone)


def _nothing() -> None:
    """Do nothing."""
