"""The guard of a listener: how many connections it takes, and what it holds of frames that are not complete.

Each server has one, for all its ports. A refused or closed connection is one log line, of which there are few.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from heliograph.base.errors import UnfinishedFrameError
from heliograph.base.guard.frame_budget import (
    SWEEP_SECONDS,
    FrameBudget,
    FrameReader,
    UnfinishedFrame,
)
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.guard.shares import ConnectionLimit, ShareCounter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The limits of one listener. Its configuration declares them as settings.

    Args:
        connections_max, connections_per_address_max: open connections.
        unfinished_bytes_max: bytes of all unfinished frames.
        unfinished_ms_max: time in which a frame has to arrive, and one second more for each 16 KiB of it.
    """

    connections_max: int
    connections_per_address_max: int
    unfinished_bytes_max: int
    unfinished_ms_max: int


class ListenerGuard:
    """What all connections of one listener share.

    Args:
        name: of the server, for the log.

    Attributes:
        refused: connections that were refused because there were too many.
        roles: the connections of each role, where callers have one.
    """

    def __init__(self, name: str, limits: ListenerLimits) -> None:
        self._name = name
        self._connections = ConnectionLimit(limits.connections_max, limits.connections_per_address_max)
        self._budget = FrameBudget(limits.unfinished_bytes_max, limits.unfinished_ms_max / 1000)
        self._quiet = QuietLog(log)
        self._sweeper: asyncio.TimerHandle | None = None
        self.refused = 0
        self.roles = ShareCounter()

    @property
    def unfinished_bytes(self) -> int:
        """The bytes of unfinished frames that are held now."""
        return self._budget.held_bytes

    @property
    def unfinished_closed(self) -> int:
        """The number of connections that were closed because of unfinished frames."""
        return self._budget.dropped

    def configure(self, limits: ListenerLimits) -> None:
        """Apply other limits to what comes from now on."""
        self._connections.most = limits.connections_max
        self._connections.of_address_max = limits.connections_per_address_max
        self._budget.bytes_max = limits.unfinished_bytes_max
        self._budget.seconds_max = limits.unfinished_ms_max / 1000

    def admit(self, address: str) -> bool:
        """Count a new connection; return False, and log it, if there are too many. ``leave`` follows if admitted."""
        if self._connections.admit(address):
            return True
        self.refuse(address, self._connections.fault(address))
        return False

    def refuse(self, address: str, reason: str) -> None:
        """Count and log a connection that is refused because there are too many of some kind."""
        self.refused += 1
        self._quiet.warning("refused", "%s refused a connection from %s: %s", self._name, address, reason)

    def leave(self, address: str) -> None:
        """Count the end of a connection that was admitted."""
        self._connections.leave(address)

    def log_dropped(self, peer: str, error: UnfinishedFrameError) -> None:
        """Log that a connection was closed because of its unfinished frame."""
        self._quiet.warning("unfinished", "%s closed the connection from %s: %s", self._name, peer, error)

    def frame_of(self, reader: FrameReader, address: str) -> UnfinishedFrame:
        """Return the account of a new connection."""
        return UnfinishedFrame(reader, address)

    def note(self, frame: UnfinishedFrame, held: int, missing: int, *, is_new: bool, arrived: int = 0) -> None:
        """Count what a connection holds after a read. See ``FrameBudget.note``."""
        loop = asyncio.get_running_loop()
        self._budget.note(frame, held, missing, loop.time(), is_new=is_new, arrived=arrived)
        if self._sweeper is None and not self._budget.is_empty:
            self._schedule_sweep(loop)

    def restart(self, frame: UnfinishedFrame) -> None:
        """Give a frame its full time again, as the listener did not read its socket for a while."""
        if frame.held:
            self._budget.restart(frame, asyncio.get_running_loop().time())

    def forget(self, frame: UnfinishedFrame) -> None:
        """Drop the frame of a connection that is closed. Idempotent."""
        self._budget.forget(frame, asyncio.get_running_loop().time())

    def close(self) -> None:
        """Watch no deadlines any more. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _sweep(self) -> None:
        assert self._sweeper is not None, "it calls this"
        loop = asyncio.get_running_loop()
        late_seconds = loop.time() - self._sweeper.when()
        if late_seconds > SWEEP_SECONDS:
            self._budget.postpone(late_seconds)
        self._sweeper = None
        self._budget.sweep(loop.time())
        if not self._budget.is_empty:
            self._schedule_sweep(loop)

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = loop.call_at(loop.time() + SWEEP_SECONDS, self._sweep)
