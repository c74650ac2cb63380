"""One direction of a connection: what is sent arrives in order, once, or not at all."""

from __future__ import annotations

from tests.simulation.network import Network
from tests.simulation.world import Action, Process, World


class Channel:
    """Like a TCP connection that is made again at once: messages may be lost, and never overtake each other."""

    def __init__(self, world: World, network: Network, source: Process, target: Process, kind: str) -> None:
        self._world = world
        self._network = network
        self._source = source
        self._target = target
        self._kind = kind
        self._last_ms = 0  # nothing arrives before what was sent earlier

    def send(self, action: Action) -> bool:
        """Have ``action`` happen to the target; False when the message is lost."""
        delay = self._network.delay(self._source, self._target, self._kind)
        if delay is None:
            return False
        self._last_ms = max(self._last_ms, self._world.now + delay)
        self._world.after(self._last_ms - self._world.now, action, self._target)
        return True
