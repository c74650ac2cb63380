"""Cuts frames out of the memory that a socket is read into, so an entry's bytes are copied once, for the caches.

All connections of a server share one buffer: the bytes of one read are processed before the next read. Only a frame
that is incomplete gets memory of its own, into which its rest is read.
"""

from __future__ import annotations

from typing import Any

from heliograph.actors.bookie.config import RECEIVE_BYTES
from heliograph.actors.wire.frame import cut_frames


class FrameReceiver:
    """The frames of one connection. Holds one unfinished frame, in at most twice the bytes received of it (I15)."""

    def __init__(self, shared: memoryview, frame_bytes_max: int, first_bytes_max: int = 0) -> None:
        """
        Args:
            shared: RECEIVE_BYTES of memory that all receivers of a server use.
            frame_bytes_max: largest frame that is accepted.
            first_bytes_max: the same for the first frame, if it is another.
        """
        self.frame_bytes_max = frame_bytes_max
        self._first_bytes_max = first_bytes_max  # 0: the first frame was received
        self._shared = shared
        self._unfinished: memoryview | None = None
        self._held = 0
        self._wanted = 0

    @property
    def held_bytes(self) -> int:
        """The memory of a frame that is not complete."""
        return 0 if self._unfinished is None else len(self._unfinished)

    @property
    def arrived(self) -> int:
        """The bytes of such a frame that have come."""
        return self._held

    @property
    def missing(self) -> int:
        """The bytes that such a frame is known to lack."""
        return self._wanted - self._held

    def clear(self) -> None:
        """Free what is held of a frame. The stream cannot be received any further."""
        self._unfinished = None

    def buffer(self) -> memoryview:
        """Return the memory for the next read; it is never empty."""
        return self._shared if self._unfinished is None else self._unfinished[self._held :]

    def received(self, count: int) -> list[tuple[list[Any], memoryview]]:
        """Return header and body of every frame that is complete now. Bodies are valid until the next read only.

        Raises:
            FrameError: a frame exceeds the limit or its header is damaged. The connection must be closed.
        """
        view = self._shared[:count]
        if self._unfinished is not None:
            self._held += count
            view = self._unfinished[: self._held]
            if self._held < self._wanted:
                if self._held == len(self._unfinished):
                    self._keep(view, self._wanted)
                return []
            self._unfinished = None
        frames, position, wanted = cut_frames(view, self.frame_bytes_max, self._first_bytes_max)
        if frames:
            self._first_bytes_max = 0
        if position < len(view):
            self._keep(view[position:], wanted)
        return frames

    def _keep(self, rest: memoryview, wanted: int) -> None:
        self._held, self._wanted = len(rest), wanted
        memory = memoryview(bytearray(min(wanted, max(2 * len(rest), RECEIVE_BYTES))))
        memory[: len(rest)] = rest
        self._unfinished = memory
