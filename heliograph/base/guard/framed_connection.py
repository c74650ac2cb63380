"""A server's end of one connection, the same under each of the four protocols that carry frames.

It knows how far the connection has come, and whether its socket is read. A protocol adds its frames, its requests and
its own bounds.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Protocol, cast

from typing_extensions import override

from heliograph.base.errors import UnfinishedFrameError
from heliograph.base.guard.frame_budget import UnfinishedFrame
from heliograph.base.guard.listener import ListenerGuard
from heliograph.base.lifecycle import Lifecycle
from heliograph.base.peer import peer_address, peer_name


class ConnectionState(enum.Enum):
    """How far a connection has come."""

    NEW = "new"
    HANDSHAKE = "handshake"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSING = "closing"
    CLOSED = "closed"


CONNECTION_LIFECYCLE = Lifecycle(
    {
        ConnectionState.NEW: (
            "There is no socket yet: under TLS, the handshake of TLS comes first.",
            {ConnectionState.HANDSHAKE, ConnectionState.CLOSING},
        ),
        ConnectionState.HANDSHAKE: (
            "The socket is open. The first frame of the client has to be the greeting of its protocol.",
            {
                ConnectionState.AUTHENTICATING,
                ConnectionState.CONNECTED,
                ConnectionState.CLOSING,
                ConnectionState.CLOSED,
            },
        ),
        ConnectionState.AUTHENTICATING: (
            "The client has greeted, and its credentials or its session are being checked. Nothing else is served.",
            {ConnectionState.CONNECTED, ConnectionState.CLOSING, ConnectionState.CLOSED},
        ),
        ConnectionState.CONNECTED: (
            "Requests are handled and answered.",
            {ConnectionState.CLOSING, ConnectionState.CLOSED},
        ),
        ConnectionState.CLOSING: (
            "The server hangs up: no further frame is handled.",
            {ConnectionState.CLOSED},
        ),
        ConnectionState.CLOSED: (
            "The socket is closed, and whatever the client held of the server is given back.",
            (),
        ),
    }
)
ENDED = (ConnectionState.CLOSING, ConnectionState.CLOSED)  # no further frame is handled


class FrameInput(Protocol):
    """The decoder of a connection, as far as the guard needs it."""

    @property
    def buffered(self) -> int:
        """The bytes of memory that an unfinished frame holds; 0: there is none."""

    @property
    def missing(self) -> int:
        """The bytes that this frame is known to lack."""

    def clear(self) -> None:
        """Free the received part of a frame. The stream cannot be received any further."""


class FramedConnection(asyncio.BaseProtocol):
    """The server's end of a connection that carries frames.

    The socket is read unless a bound of the protocol forbids it (``hold_back``, ``let_go``, I15), or there is no room
    for the frame that is being received, which the guard of the listener decides.

    Args:
        source: the decoder of the frames.

    Attributes:
        state: as ``CONNECTION_LIFECYCLE`` says.
        peer: ``host:port`` of the client, for logs.
        address: of the client, by which its connections are counted.
        is_held_back: whether a bound of the protocol keeps the socket from being read, which is not the client's fault.
        is_reading: whether the socket is read: not ``is_held_back``, and there is room for the frame.
    """

    def __init__(self, guard: ListenerGuard, source: FrameInput) -> None:
        self.state = ConnectionState.NEW
        self.peer = "in-process:0"
        self.address = ""
        self.is_held_back = False
        self.is_reading = True
        self._guard = guard
        self._source = source
        self._frame = UnfinishedFrame(self, "")
        self._transport: asyncio.Transport | None = None  # only while the socket is open

    @property
    def waits_for_room(self) -> bool:
        """Whether the socket is not read because other frames take the room, which is not the client's fault."""
        return self._frame.is_waiting

    @property
    def is_closing(self) -> bool:
        """Whether no further frame is handled."""
        return self.state in ENDED

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class
        self.peer = peer_name(transport)
        self.address = self._frame.address = peer_address(transport)
        self._move(ConnectionState.HANDSHAKE)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._move(ConnectionState.CLOSED)
        self._guard.forget(self._frame)

    def abort(self) -> None:
        """Close the socket at once: frames that were not handled never are, nothing more is sent. Idempotent."""
        self._begin_closing()
        if self._transport is not None:
            self._transport.abort()

    # -- when the socket is read

    def hold_back(self) -> None:
        """Read nothing until ``let_go``: a bound of the protocol is reached. Idempotent."""
        if not self.is_held_back:
            self.is_held_back = True
            self._apply()

    def let_go(self) -> None:
        """Read on, if there is room for the frame that is being received. It gets its full time again. Idempotent."""
        if self.is_held_back:
            self.is_held_back = False
            self._guard.restart(self._frame)
            self._apply()

    def hold_reading(self) -> None:
        """Stop reading, because there is no room for the frame."""
        self._apply()

    def resume_reading(self) -> None:
        """Read on, because there is room for the frame, unless a bound of the protocol forbids it."""
        self._apply()

    def drop_frame(self, error: UnfinishedFrameError) -> None:
        """Close the connection because of its unfinished frame, and free the received part of it."""
        self._guard.log_dropped(self.peer, error)
        self._source.clear()
        self.abort()

    def _note_frame(self, *, is_new: bool, arrived: int = 0) -> None:
        """Count the bytes held of an unfinished frame after a read, if one is begun now or was before.

        Args:
            is_new: the read completed an earlier frame.
            arrived: bytes of the unfinished frame that have come; 0: as many as are held.
        """
        source = self._source
        self._guard.note(self._frame, source.buffered, source.missing, is_new=is_new, arrived=arrived)

    def _apply(self) -> None:
        is_wanted = not (self.is_held_back or self._frame.is_waiting)
        transport = self._transport
        if is_wanted is self.is_reading or transport is None or transport.is_closing():
            return
        self.is_reading = is_wanted
        (transport.resume_reading if is_wanted else transport.pause_reading)()

    # -- states

    def _begin_closing(self) -> None:
        if self.state not in ENDED:
            self._move(ConnectionState.CLOSING)

    def _move(self, to: ConnectionState) -> None:
        self.state = CONNECTION_LIFECYCLE.move(self.state, to)
