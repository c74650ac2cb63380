"""The server's end of one client's connection: frames in, frames out, watches that end with it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol, cast

from metadata.embedded.protocol import FrameDecoder
from metadata.errors import ProtocolError
from metadata.watches import WatchEntry

OUTPUT_BYTES_MAX = 64 << 20  # waiting for a client that does not read; then it is cut off

_log = logging.getLogger(__name__)


class Handler(Protocol):
    """What a connection reports to."""

    def on_connected(self, connection: Connection) -> None:
        """The socket is open."""

    def on_disconnected(self, connection: Connection) -> None:
        """The socket is closed."""

    def handle(self, connection: Connection, frame: list[Any]) -> None:
        """A frame arrived; a ProtocolError ends the connection."""


class Connection(asyncio.Protocol):
    """One client. ``session_id`` is 0 until its HELLO was granted; ``alive_ms`` is when its session was last seen."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._decoder = FrameDecoder()
        self._output: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self.session_id = 0
        self.alive_ms = 0
        self.paused = False
        self.watches: dict[int, WatchEntry[tuple[Connection, int]]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._handler.on_connected(self)

    def data_received(self, data: bytes) -> None:
        """Handle what came in and send the answers that need not wait."""
        try:
            for frame in self._decoder.feed(data):
                if self._closing:
                    return
                self._handler.handle(self, frame)
        except ProtocolError as error:
            _log.warning("closing a connection: %s", error)
            self.abort()
            return
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed."""
        self._transport = None
        self._output.clear()
        self._handler.on_disconnected(self)

    def put(self, frame: bytes) -> None:
        """See Outlet."""
        if self._transport is not None:
            self._output.append(frame)

    def flush(self) -> None:
        """See Outlet."""
        transport = self._transport
        if transport is None:
            return
        if self._output:
            transport.write(b"".join(self._output))
            self._output.clear()
        if transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:  # I15
            _log.warning("cutting off a client that does not read its answers")
            transport.abort()

    def finish(self) -> None:
        """Send what is queued, then close."""
        self._closing = True
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what has arrived and was not read is never handled."""
        self._closing = True
        self._output.clear()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more until ``resume``."""
        if self._transport is not None and not self.paused:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self.paused = False
        if self._transport is not None and not self._closing:
            self._transport.resume_reading()
