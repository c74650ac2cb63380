"""The guard of a listener: bounds of its connections, and of the bytes of unfinished frames.

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
    UnfinishedFrame,
)
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.guard.shares import ConnectionLimit, ShareCounter

log = logging.getLogger(__name__)
quiet = QuietLog(log)


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
    """The state that all connections of one listener share.

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
        return self._budget.held_bytes

    @property
    def unfinished_closed(self) -> int:
        """The number of connections that were closed because of unfinished frames."""
        return self._budget.dropped

    def configure(self, limits: ListenerLimits) -> None:
        """Apply other limits to connections and frames that come from now on."""
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
        self._quiet.warning("unfinished", "%s closed the connection from %s: %s", self._name, peer, error)

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


UNSENT_BYTES_MAX = 256 << 20  # of all connections that are full  # I15
UNSENT_TOTAL_BYTES_MAX = UNSENT_BYTES_MAX + UNSENT_BYTES_MAX // 2  # with the buffers below their limits
UNSENT_LIMIT_LEAST = 16 << 10  # bytes of one connection, however many there are
_ROOM_LEAST = 32  # connections that always have their full limit


class UnsentBudget:
    """Budget of the bytes that clients of a listener have yet to take from the buffers of their transports (I15).

    Each connection has a limit, from which on it is **full** and gets no more. The limit is smaller where many are
    open, so that buffers below it fit half of the budget together. The bytes of full connections are counted. When they
    exceed the budget, the connection that was full first is closed: clients that read are full for a short time only.

    Args:
        limit: of one connection while there are few.
        bytes_max: of all full connections together.

    Attributes:
        bytes: of full connections, <= bytes_max when a method returns.
        dropped: connections that were closed for it.
    """

    def __init__(self, limit: int, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self.bytes = 0
        self.dropped = 0
        self._most = limit
        self._bytes_max = bytes_max
        self._open: set[asyncio.WriteTransport] = set()
        self._room = _ROOM_LEAST  # connections that the limit is made for; len(_open) <= room
        self._full: dict[asyncio.WriteTransport, int] = {}  # bytes; the one that was full first is first

    def join(self, transport: asyncio.WriteTransport) -> None:
        """Count a new connection, and give it its limit."""
        self._open.add(transport)
        if len(self._open) > self._room:
            self._resize(2 * self._room)
        else:
            transport.set_write_buffer_limits(high=self._limit)

    def leave(self, transport: asyncio.WriteTransport | None) -> None:
        """Count a connection no more. Idempotent."""
        if transport is None:
            return
        self._open.discard(transport)
        self.bytes -= self._full.pop(transport, 0)
        if self._room > _ROOM_LEAST and 4 * len(self._open) < self._room:
            self._resize(self._room // 2)

    def note(self, transport: asyncio.WriteTransport | None, *, is_full: bool) -> None:
        """Count what waits for a connection that is full, or that it is not full any more."""
        if transport is None or transport not in self._open:
            return
        size = transport.get_write_buffer_size() if is_full else 0
        self.bytes += size - self._full.get(transport, 0)
        if size:
            self._full[transport] = size
        else:
            self._full.pop(transport, None)
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._full))
            self.leave(oldest)
            self.dropped += 1
            quiet.warning("unsent", "a client does not read, and too much waits for such clients: it is closed")
            oldest.abort()
        assert self.bytes >= 0, "a connection leaves with the bytes that it was counted with"  # I15

    @property
    def _limit(self) -> int:
        return max(UNSENT_LIMIT_LEAST, min(self._most, self._bytes_max // 2 // self._room))

    def _resize(self, room: int) -> None:
        self._room = room
        for transport in self._open:
            transport.set_write_buffer_limits(high=self._limit)
