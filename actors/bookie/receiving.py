"""Frames straight out of the memory that the socket is read into: an entry's bytes are copied once, for the caches.

All connections of a server share one piece of memory, since what was read into it is used up before the next read. Only
a frame that is not whole yet has memory of its own, into which the rest of it is read.
"""

from __future__ import annotations

from typing import Any

from actors.bookie.config import RECEIVE_BYTES
from actors.wire.frame import cut_frames


class FrameReceiver:
    """One connection's frames. Holds at most one unfinished frame, and no more than twice what came of it (I15)."""

    def __init__(self, shared: memoryview, frame_bytes_max: int) -> None:
        """
        Args:
            shared: RECEIVE_BYTES that other receivers use in turn.
        """
        self.frame_bytes_max = frame_bytes_max
        self._shared = shared
        self._unfinished: memoryview | None = None
        self._held = 0
        self._wanted = 0

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        return self._shared if self._unfinished is None else self._unfinished[self._held :]

    def received(self, count: int) -> list[tuple[list[Any], memoryview]]:
        """Header and body of every frame that is whole with these bytes. Bodies are good until the next read only.

        Raises:
            FrameError: a frame above the limit, or a damaged header: the stream cannot be followed any more.
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
        frames, position, wanted = cut_frames(view, self.frame_bytes_max)
        if position < len(view):
            self._keep(view[position:], wanted)
        return frames

    def _keep(self, rest: memoryview, wanted: int) -> None:
        self._held, self._wanted = len(rest), wanted
        memory = memoryview(bytearray(min(wanted, max(2 * len(rest), RECEIVE_BYTES))))
        memory[: len(rest)] = rest
        self._unfinished = memory
