"""Cuts answers out of the memory that a client's socket is read into.

Small answers share one buffer. A frame that is incomplete gets memory of its own, into which its rest is read by the
kernel: the entries of a batch are not copied again, and views of them may be kept.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from heliograph.actors.wire.frame import FRAME_BYTES_MAX, cut_frames

if TYPE_CHECKING:
    from heliograph.actors.wire.client import BookieConnection

RECEIVE_BYTES = 64 << 10  # of one read of a socket, except into the memory of a frame


class AnswerReceiver:
    """The frames of one connection. It holds a buffer of ``RECEIVE_BYTES`` and at most one incomplete frame (I15).

    Attributes:
        shared: the buffer, into which a read goes while there is no incomplete frame.
        unfinished: the memory of the incomplete frame.
    """

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(RECEIVE_BYTES))
        self.unfinished: memoryview | None = None
        self._held = 0  # bytes of the incomplete frame that have come; 0 <= held <= len(unfinished)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next read; it is never empty. Asyncio calls it before each read."""
        return self.shared if self.unfinished is None else self.unfinished[self._held :]

    def received(self, count: int) -> list[tuple[list[Any], memoryview]]:
        """Return header and body of every frame that is complete now. Bodies live as long as they are used.

        Args:
            count: bytes that were read into ``get_buffer``.

        Raises:
            FrameError: a frame exceeds the limit or its header is damaged. The connection must be closed.
        """
        if self.unfinished is None:
            frames, position, wanted = cut_frames(self.shared[:count], FRAME_BYTES_MAX)
            if position < count:
                self._keep(self.shared[position:count], wanted)
            if len(frames) == 1 and not frames[0][1]:
                return frames
            return [(header, memoryview(bytes(body)) if body else body) for header, body in frames]
        self._held += count
        if self._held < len(self.unfinished):
            return []
        whole, self.unfinished = self.unfinished, None
        frames, position, wanted = cut_frames(whole, FRAME_BYTES_MAX)
        if position < len(whole):
            self._keep(whole[position:], wanted)
        return frames

    def _keep(self, rest: memoryview, wanted: int) -> None:
        """Keep the begin of a frame in memory of its own, as much as the frame is known to need."""
        assert len(rest) < wanted, "a frame that is complete is not kept"
        self.unfinished, self._held = memoryview(bytearray(wanted)), len(rest)
        self.unfinished[: len(rest)] = rest


class BookieLink(AnswerReceiver, asyncio.BufferedProtocol):
    """One socket. A connection may have several, one after the other. Events of an old one are ignored."""

    def __init__(self, connection: BookieConnection) -> None:
        super().__init__()
        self._connection = connection
        self.transport: asyncio.WriteTransport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass
        self._connection.on_link(self)

    @override
    def buffer_updated(self, nbytes: int) -> None:
        connection = self._connection
        awaited = connection.awaited
        if nbytes == len(awaited) and self.unfinished is None and self.shared[:nbytes] == awaited:
            connection.on_awaited(self)
        else:
            connection.on_data(self, nbytes)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self._connection.on_link_lost(self, error)
