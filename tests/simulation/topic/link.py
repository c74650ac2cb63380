"""A client's connection to a broker: both directions in order; one lost message breaks it for good."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.channel import Channel
from tests.simulation.network import Network
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.world import Action, Process, World

NOTICED_AFTER_MS = 400  # each end finds out by itself that the other is gone


class Client(Process):
    """Somebody with at most one connection at a time."""

    link: Link | None = None


class Link:
    """``on_broken`` is the client's, ``on_gone`` the broker's: what to do once they notice."""

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
        """From the client: have the broker do something."""

        def at_broker() -> None:
            if not self.is_broken:
                self.broker.run(action)

        self._send(self._there, at_broker)

    def tell(self, action: Action) -> None:
        """From the broker: have the client do something."""

        def at_client() -> None:
            if not self.is_broken:
                action()

        self._send(self._back, at_client)

    def cut(self) -> None:
        """Break it."""
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
    """Nobody cares."""
