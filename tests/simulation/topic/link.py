"""A client's connection to a broker. Both directions are in order, and one lost message breaks it for good."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.cluster.channel import Channel
from tests.simulation.cluster.network import Network
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.world import Action, Process, World

NOTICED_AFTER_MS = 400  # after which each end notices the break


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

    def ask(self, action: Action) -> None:
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
