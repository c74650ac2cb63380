"""The server's end of one client's connection: frames in, frames out, and the watches that end with it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Protocol, cast

from typing_extensions import override

from heliograph.base.guard.handshake import METADATA, ServerHandshake
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.peer import peer_name
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


class EmbeddedConnection(asyncio.Protocol):
    """One client's connection.

    ``session_id`` is 0 before its HELLO is granted; at ``alive_ms`` its session still stood. ``handshake`` is None once
    the client has proved the secret, and where there is none.
    """

    def __init__(self, handler: Handler, secret: str | None = None) -> None:
        """
        Args:
            secret: the cluster's, one a line, which the client has to prove; None: nothing is asked for.
        """
        self._handler = handler
        self.handshake = None if secret is None else ServerHandshake(secret, METADATA, SERVER_NAME)
        self._decoder = EmbeddedFrameDecoder(GREETING_BYTES_MAX)
        self._output: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self.session_id = 0
        self.alive_ms = 0
        self.paused = False
        self.watches: dict[int, ServerWatch] = {}

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._handler.on_connected(self)

    @override
    def data_received(self, data: bytes) -> None:
        """Handle the frames and send the answers that need not wait."""
        try:
            for frame in self._decoder.feed(data):
                if self._closing:
                    return
                self._handler.handle(self, frame)
        except MetadataProtocolError as error:
            quiet.warning("frame", "metadata closed the connection from %s: %s", self.peer, error)
            self.abort()
            return
        self.flush()

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._output.clear()
        self._handler.on_disconnected(self)

    @property
    def peer(self) -> str:
        """``host:port`` of the client."""
        return peer_name(self._transport)

    def attached(self, session_id: int) -> None:
        """Serve a session from now on, with frames of the full size."""
        self.session_id = session_id
        self._decoder.frame_bytes_max = FRAME_BYTES_MAX

    @property
    def is_closing(self) -> bool:
        """Whether no further request is handled."""
        return self._closing

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
        self._closing = True
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once. Requests that have arrived and were not read are never handled."""
        self._closing = True
        self._output.clear()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading until ``resume``."""
        if self._transport is not None and not self.paused:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self.paused = False
        if self._transport is not None and not self._closing:
            self._transport.resume_reading()
