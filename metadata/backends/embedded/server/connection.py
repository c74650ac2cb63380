"""The server's end of one client's connection: frames in, frames out, and the watches that end with it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import override

from heliograph.base.guard.framed_connection import ENDED, ConnectionState, FramedConnection
from heliograph.base.guard.handshake import METADATA, ServerHandshake
from heliograph.base.guard.listener import ListenerGuard
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.metadata.backends.embedded.protocol import (
    FRAME_BYTES_MAX,
    GREETING_BYTES_MAX,
    SERVER_NAME,
    EmbeddedFrameDecoder,
)
from heliograph.metadata.errors import MetadataProtocolError
from heliograph.metadata.session.watches import WatchEntry

OUTPUT_BYTES_MAX = 64 << 20  # waiting for a client that does not read; then it is cut off

quiet = QuietLog(logging.getLogger(__name__))


class Handler(Protocol):
    """The receiver of a connection's events."""

    guard: ListenerGuard

    def on_connected(self, connection: EmbeddedConnection) -> None:
        """Note that the socket is open."""

    def on_disconnected(self, connection: EmbeddedConnection) -> None:
        """Note that the socket is closed."""

    def handle(self, connection: EmbeddedConnection, frame: list[Any]) -> None:
        """Handle a frame. MetadataProtocolError ends the connection."""


@dataclass(eq=False, slots=True)
class ServerWatch(WatchEntry):
    """A watch of a client; ``watch_id`` is the client's number for it."""

    connection: EmbeddedConnection
    watch_id: int


class EmbeddedConnection(FramedConnection, asyncio.Protocol):
    """One client's connection.

    ``session_id`` is 0 before its HELLO is granted; at ``alive_ms`` its session still stood. ``handshake`` is None once
    the client has proved the secret, and where there is none.
    """

    def __init__(self, handler: Handler, secret: str | None = None) -> None:
        """
        Args:
            secret: the cluster's, one a line, which the client has to prove; None: nothing is asked for.
        """
        self._decoder = EmbeddedFrameDecoder(GREETING_BYTES_MAX)
        super().__init__(handler.guard, self._decoder)
        self._handler = handler
        self.handshake = None if secret is None else ServerHandshake(secret, METADATA, SERVER_NAME)
        self._output: list[bytes] = []
        self.session_id = 0
        self.alive_ms = 0
        self.is_told_release = False  # whether the client has said its own
        self.watches: dict[int, ServerWatch] = {}

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handler.on_connected(self)

    @override
    def data_received(self, data: bytes) -> None:
        """Handle the frames and send the answers that need not wait."""
        try:
            frames = self._decoder.feed(data)
            for frame in frames:
                if self.state in ENDED:
                    return
                self._handler.handle(self, frame)
            if self._decoder.buffered or self._frame.held:
                self._note_frame(is_new=bool(frames))
        except MetadataProtocolError as error:
            quiet.warning("frame", "metadata closed the connection from %s: %s", self.peer, error)
            self.abort()
            return
        self.flush()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._output.clear()
        self._handler.on_disconnected(self)

    def attached(self, session_id: int) -> None:
        """Serve a session from now on, with frames of the full size."""
        self.session_id = session_id
        self._move(ConnectionState.CONNECTED)
        self._decoder.frame_bytes_max = FRAME_BYTES_MAX

    def put(self, frame: bytes) -> None:
        """Queue a frame. Nothing happens when the socket is closed."""
        if self._transport is not None:
            self._output.append(frame)

    def flush(self) -> None:
        """Send what is queued. Cut off a client that does not read."""
        transport = self._transport
        if transport is None:
            return
        if self._output:
            transport.write(b"".join(self._output))
            self._output.clear()
        if transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:  # I15
            quiet.warning("slow", "metadata closed the connection from %s: it does not read its answers", self.peer)
            transport.abort()

    def finish(self) -> None:
        """Send what is queued, then close."""
        self._begin_closing()
        self.flush()
        if self._transport is not None:
            self._transport.close()

    @override
    def abort(self) -> None:
        self._output.clear()
        super().abort()
