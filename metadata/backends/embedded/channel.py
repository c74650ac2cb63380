"""The client's end of one connection to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from typing_extensions import override

from heliograph.metadata.backends.embedded.protocol import EmbeddedFrameDecoder
from heliograph.metadata.errors import MetadataProtocolError


class Channel(asyncio.Protocol):
    """Frames over one socket.

    ``on_frame`` gets each in order; ``on_lost`` is called once, when the socket is closed.
    """

    def __init__(self, on_frame: Callable[[list[Any]], None], on_lost: Callable[[Channel], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._decoder = EmbeddedFrameDecoder(joins_answers=True)
        self._output: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    @override
    def data_received(self, data: bytes) -> None:
        """Pass the frames on. Bytes that are not the protocol end the connection."""
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except MetadataProtocolError:
            self.abort()

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._output.clear()
        self._on_lost(self)

    def put(self, frame: bytes) -> None:
        """Send a frame at the end of this round of the loop, together with all others of the round."""
        if not self._output:
            asyncio.get_running_loop().call_soon(self._flush)
        self._output.append(frame)

    def abort(self) -> None:
        """Close at once. ``on_lost`` follows."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        if self._transport is not None and self._output:
            self._transport.write(b"".join(self._output))
        self._output.clear()
