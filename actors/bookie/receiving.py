"""Frames straight out of the memory that the socket is read into: a small entry's bytes are copied once for the caches,
a large one's not at all.

All connections of a server share one piece of memory, since what was read into it is used up before the next read. Only
a frame that is not whole yet has memory of its own, into which the rest of it is read. Behind a large frame only a
little is read at first: the head of the next one, whose body then comes into its own memory too.
"""

from __future__ import annotations

from typing import Any

from actors.bookie.config import RECEIVE_BYTES
from actors.bookie.frame_memory import FrameMemory
from actors.wire.entry import EntryBytes
from actors.wire.frame import cut_frames

_FIRST_BYTES = 4 << 10  # read at first behind a large frame


class FrameReceiver:
    """One connection's frames. Holds at most one unfinished frame: a large one in memory that it took, any other one in
    no more than twice what came of it (I15)."""

    def __init__(self, memory: FrameMemory, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._memory = memory
        self._first = memory.shared
        self._unfinished: memoryview | None = None
        self._is_taken = False  # the unfinished frame's memory is
        self._is_kept = False  # the frame that was handed out lies in memory that it took
        self._held = 0
        self._wanted = 0

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        return self._first if self._unfinished is None else self._unfinished[self._held :]

    def received(self, count: int) -> list[tuple[list[Any], memoryview]]:
        """Header and body of every frame that is whole with these bytes. Bodies are good until the next read only:
        ``keep`` those that are needed for longer.

        Raises:
            FrameError: a frame above the limit, or a damaged header: the stream cannot be followed any more.
        """
        if self._unfinished is None:
            view, self._is_kept = self._first[:count], False
        else:
            self._held += count
            view = self._unfinished[: self._held]
            if self._held < self._wanted:
                if self._held == len(self._unfinished):
                    self._keep(view, self._wanted)
                return []
            self._is_kept = self._is_taken
            self.close()
        self._first = self._memory.shared[:_FIRST_BYTES] if self._is_kept else self._memory.shared
        frames, position, wanted = cut_frames(view, self.frame_bytes_max)
        if position < len(view):
            self._keep(view[position:], wanted)
        return frames

    def keep(self, body: memoryview) -> EntryBytes:
        """A body of the last ``received`` for as long as it is needed: itself if it lies in memory of its own."""
        return body if self._is_kept else bytes(body)

    def close(self) -> None:
        """The unfinished frame is not waited for any more."""
        if self._unfinished is not None and self._is_taken:
            self._memory.received()
        self._unfinished = None

    def _keep(self, rest: memoryview, wanted: int) -> None:
        self._held, self._wanted = len(rest), wanted
        memory = self._memory.take(wanted)
        self._is_taken = memory is not None
        if memory is None:
            memory = memoryview(bytearray(min(wanted, max(2 * len(rest), RECEIVE_BYTES))))
        memory[: len(rest)] = rest
        self._unfinished = memory
