"""The state that the clients of a run share."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.cluster.network import Network
from tests.simulation.cluster.runner import Cluster
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.profile import Profile
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.checkers import TopicCheckers

if TYPE_CHECKING:
    from tests.simulation.topic.consumer import SimulatedConsumer
    from tests.simulation.topic.link import Client, Link
    from tests.simulation.topic.producer import ProducerEnd, SimulatedProducer
    from tests.simulation.topic.reader import SimulatedReader

STALE_LOOKUP = 0.15  # how often a client is sent to a broker that may have been replaced


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
        """Return all clients."""
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
