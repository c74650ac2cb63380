"""The server's end of one client's connection: frames in, frames out, and the watches that end with it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Protocol, cast

from typing_extensions import override

from heliograph.base.errors import UnfinishedFrameError
from heliograph.base.guard.handshake import METADATA, ServerHandshake
from heliograph.base.guard.listener import ListenerGuard
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.peer import peer_address, peer_name
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
        self.unfinished = handler.guard.frame_of(self, "")
        self.address = ""  # of the client, by which its connections are counted
        self.session_id = 0
        self.alive_ms = 0
        self.is_told_release = False  # whether the client has said its own
        self.paused = False
        self.watches: dict[int, ServerWatch] = {}

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self.address = self.unfinished.address = peer_address(transport)
        self._handler.on_connected(self)

    @override
    def data_received(self, data: bytes) -> None:
        """Handle the frames and send the answers that need not wait."""
        try:
            frames = self._decoder.feed(data)
            for frame in frames:
                if self._closing:
                    return
                self._handler.handle(self, frame)
            held = self._decoder.buffered
            if held or self.unfinished.held:
                self._handler.guard.note(self.unfinished, held, self._decoder.missing, is_new=bool(frames))
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
        return peer_name(self._transport)

    def attached(self, session_id: int) -> None:
        """Serve a session from now on, with frames of the full size."""
        self.session_id = session_id
        self._decoder.frame_bytes_max = FRAME_BYTES_MAX

    @property
    def is_closing(self) -> bool:
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
        """Read again, if there is room for the frame that is being received."""
        self.paused = False
        self._handler.guard.restart(self.unfinished)
        self.resume_reading()

    @property
    def is_held(self) -> bool:
        return self.paused or self.unfinished.is_waiting

    # -- the guard's view of the frame that is being received

    @property
    def is_held_back(self) -> bool:
        """Whether the socket is not read for another reason than its unfinished frame."""
        return self.paused

    def hold_reading(self) -> None:
        """Stop reading, as there is no room for the frame."""
        if self._transport is not None and not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, if nothing forbids it."""
        if self._transport is not None and not self._closing and not self.is_held:
            self._transport.resume_reading()

    def drop_frame(self, error: UnfinishedFrameError) -> None:
        """Close the connection, because of its unfinished frame."""
        self._handler.guard.log_dropped(self.peer, error)
        self._decoder.clear()
        self.abort()
