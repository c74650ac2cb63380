"""The server's end of one client's connection: frames in, frames out, and the watches that end with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
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

MARK = b""  # it is put like a frame, and nothing is sent for it
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

    ``session_id`` is 0 until its HELLO is granted; its session still existed at ``alive_ms``. ``handshake`` is None if
    there is no secret, or the client has proved it.
    """

    def __init__(self, handler: Handler, secret: str | None = None) -> None:
        """
        Args:
            secret: the cluster's secrets, one per line; the client has to prove one. None: none is required.
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
        self.unhandled: list[list[Any]] = []  # requests that wait while the connection is paused, in order
        self.is_paused = False
        self.read_for: list[Any] | None = None  # the request that a thread has read for and that is handled again
        self._withheld: list[bytes] | None = None  # frames that follow an answer made in steps

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handler.on_connected(self)

    @override
    def data_received(self, data: bytes) -> None:
        """Handle the frames and send the answers that need not wait."""
        try:
            frames = self._decoder.feed(data)
        except MetadataProtocolError as error:
            self._refuse(error)
            return
        self._serve(frames)
        if self.state not in ENDED and (self._decoder.buffered or self._frame.held):
            self._note_frame(is_new=bool(frames))

    def pause(self, *again: list[Any], withholds: bool = False) -> None:
        """Handle no further request until ``proceed``.

        Args:
            again: the present request, if it is to be handled again.
            withholds: also send nothing: the answer to the present request shows the store as it is now, and frames
                sent from now on may tell of later changes.
        """
        assert not self.is_paused, "one request at a time waits"
        self.is_paused = True
        self.unhandled = [*again]
        self._withheld = [] if withholds else None
        self.hold_back()

    def withheld(self) -> tuple[list[bytes], list[bytes]]:
        """Stop withholding. Return the withheld frames: those to be sent before the answer, and those after it.

        Frames put before MARK go first: an event tells of a change before an answer shows it.
        """
        frames, self._withheld = self._withheld or [], None
        at = frames.index(MARK) if MARK in frames else len(frames)
        return frames[:at], frames[at + 1 :]

    def proceed(self) -> None:
        """Handle the waiting requests, any of which may pause again. The socket stays held back."""
        assert self.is_paused, "the connection was paused"
        assert self._withheld is None, "what was withheld is sent first"
        unhandled, self.unhandled = self.unhandled, []
        self.is_paused = False
        self._serve(unhandled)

    def _serve(self, frames: Iterable[list[Any]]) -> None:
        try:
            for frame in frames:
                if self.state in ENDED:
                    return
                if self.is_paused:
                    self.unhandled.append(frame)
                else:
                    self._handler.handle(self, frame)
        except MetadataProtocolError as error:
            self._refuse(error)
            return
        self.flush()

    def _refuse(self, error: MetadataProtocolError) -> None:
        quiet.warning("frame", "metadata closed the connection from %s: %s", self.peer, error)
        self.abort()

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
        """Queue a frame. Nothing happens if the socket is closed."""
        if self._withheld is not None:
            self._withheld.append(frame)
        elif self._transport is not None:
            self._output.append(frame)

    def flush(self) -> None:
        """Send the queued frames. Cut off a client that does not read."""
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
        """Send the queued frames, then close."""
        self._begin_closing()
        self.flush()
        if self._transport is not None:
            self._transport.close()

    @override
    def abort(self) -> None:
        self._output.clear()
        super().abort()
