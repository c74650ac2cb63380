"""One direction of a connection: a message arrives once or not at all, and messages arrive in order."""

from __future__ import annotations

from tests.simulation.cluster.network import Network
from tests.simulation.world import Action, Process, World


class Channel:
    """A TCP connection that is opened again at once: messages may be lost, and never overtake each other."""

    def __init__(self, world: World, network: Network, source: Process, target: Process, kind: str) -> None:
        self._world = world
        self._network = network
        self._source = source
        self._target = target
        self._kind = kind
        self._last_ms = 0  # nothing arrives before what was sent earlier

    def send(self, action: Action) -> bool:
        """Let ``action`` happen to the target. Return False if the message is lost."""
        delay = self._network.delay(self._source, self._target, self._kind)
        if delay is None:
            return False
        self._last_ms = max(self._last_ms, self._world.now + delay)
        self._world.after(self._last_ms - self._world.now, action, self._target)
        return True
