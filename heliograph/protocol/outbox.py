"""Frames that one turn of an event loop makes for one socket, written together.

A system call for each frame, and the wake-up of the peer that comes with it, costs more than making the frame. Nothing
waits for company: what was put in is written before the loop looks at its sockets again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

HELD_BYTES_MAX = 64 << 10  # more than this is written at once, so that the socket's own bound is felt in time # I15


class Socket(Protocol):
    """What an outbox needs of a transport."""

    def write(self, data: bytes, /) -> None:
        """Send a piece, or hold it until it can be sent."""

    def writelines(self, list_of_data: Iterable[bytes], /) -> None:
        """The same with several pieces."""


class Outbox:
    """What waits for the end of the turn. Frames leave in the order in which they were put in.

    Args:
        socket: a transport; nothing is written to it after ``drop``.
        call_soon: has a function called later in this turn, or in the next: ``loop.call_soon``.
    """

    __slots__ = ("_call_soon", "_is_due", "_parts", "_size", "_socket")

    def __init__(self, socket: Socket, call_soon: Callable[[Callable[[], None]], Any]) -> None:
        self._socket: Socket | None = socket
        self._call_soon = call_soon
        self._parts: list[bytes] = []
        self._size = 0
        self._is_due = False

    def put(self, frame: bytes, payload: bytes = b"") -> None:
        """Write a frame, the second part of which may be large and is not copied then."""
        if self._socket is None:
            return
        self._parts.append(frame)
        self._size += len(frame)
        if payload:
            self._parts.append(payload)
            self._size += len(payload)
        if self._size > HELD_BYTES_MAX:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._call_soon(self._turn_ends)

    def flush(self) -> None:
        """Write what is held now."""
        parts, size, socket = self._parts, self._size, self._socket
        if not parts or socket is None:
            return
        self._parts, self._size = [], 0  # before the write: it may say that there is too much, and that may put more in
        if len(parts) == 1:
            socket.write(parts[0])
        elif size <= HELD_BYTES_MAX:
            socket.write(b"".join(parts))
        else:
            socket.writelines(parts)

    def drop(self) -> None:
        """Forget what is held: the socket takes no more."""
        self._socket = None
        self._parts.clear()
        self._size = 0

    def _turn_ends(self) -> None:
        self._is_due = False
        self.flush()
