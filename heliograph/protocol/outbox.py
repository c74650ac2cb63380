"""An outbox collects the frames that one turn of an event loop makes for one socket, and writes them together.

A system call for each frame, with the wake-up of the peer, costs more than making the frame. No frame is delayed: all
are written before the loop polls its sockets again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

JOINED_BYTES_MAX = 64 << 10  # a copy of at most this size costs less than a write in parts
JOINED_PART_BYTES = 4 << 10  # so does one of parts that have no more on average
OUTBOX_BYTES_MAX = 64 << 10  # more is written at once, so that the limit of the socket's buffer takes effect # I15


class Socket(Protocol):
    """The methods of a transport that an outbox needs."""

    def write(self, data: bytes | memoryview, /) -> None:
        """Send bytes, or buffer them until they can be sent."""

    def writelines(self, list_of_data: Iterable[bytes | memoryview], /) -> None:
        """Send several pieces in order."""


class Outbox:
    """The frames of the current turn, which are written in the order of ``put``.

    Args:
        socket: a transport; nothing is written to it after ``drop``.
        call_soon: schedules a function for the end of this turn: ``loop.call_soon``.
        bytes_max: above which frames are written at once.
    """

    __slots__ = ("_bytes_max", "_call_soon", "_is_due", "_parts", "_size", "_socket")

    def __init__(
        self, socket: Socket, call_soon: Callable[[Callable[[], None]], Any], bytes_max: int = OUTBOX_BYTES_MAX
    ) -> None:
        self._socket: Socket | None = socket
        self._bytes_max = bytes_max
        self._call_soon = call_soon
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._is_due = False

    def put(self, frame: bytes, payload: bytes | memoryview = b"") -> None:
        """Add a frame. Its second part, ``payload``, is not copied if it is large."""
        if self._socket is None:
            return
        self._parts.append(frame)
        self._size += len(frame)
        if payload:
            self._parts.append(payload)
            self._size += len(payload)
        if self._size > self._bytes_max:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._call_soon(self._end_turn)

    def put_last(self, frame: bytes, payload: bytes | memoryview = b"") -> None:
        """Add a frame as ``put`` does, after which no other is expected in this turn, and write all frames now."""
        if self._socket is None:
            return
        if not self._parts and len(payload) <= JOINED_BYTES_MAX:
            self._write([frame + payload if payload else frame])
            return
        self._parts += (frame, payload) if payload else (frame,)
        self._size += len(frame) + len(payload)
        self.flush()

    def flush(self) -> None:
        """Write all frames now."""
        parts, size = self._parts, self._size
        if not parts:
            return
        self._parts, self._size = [], 0  # before the write, which may call back and put more frames
        if len(parts) > 1 and size <= max(JOINED_BYTES_MAX, JOINED_PART_BYTES * len(parts)):
            parts = [b"".join(parts)]
        self._write(parts)

    def drop(self) -> None:
        """Discard all frames, also later ones."""
        self._socket = None
        self._parts.clear()
        self._size = 0

    def _write(self, parts: list[bytes | memoryview]) -> None:
        socket = self._socket
        assert socket is not None, "no frame is kept after the drop"
        try:
            if len(parts) == 1:
                socket.write(parts[0])
            else:
                socket.writelines(parts)
        except RuntimeError:  # of uvloop: the peer is gone, and the loss is told later in this turn
            self.drop()

    def _end_turn(self) -> None:
        self._is_due = False
        self.flush()
