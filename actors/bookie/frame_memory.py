"""Memory that frames are received into: one piece that all connections share, and segments for large frames.

A large frame is received where it stays: its entry is queued for the journal, cached and flushed as a view of a
segment. A segment is used again once no such view is left, whoever had it; memory that is touched for the first time
costs more of the processor than what is done with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref

from actors.bookie.config import RECEIVE_BYTES, RECEIVING_FRAMES_MAX, SEGMENT_BYTES, SEGMENTS_KEPT_MAX

LARGE_FRAME_BYTES = 32 << 10  # from here on a call of the kernel more costs less than a copy more
SEGMENT_FRAME_BYTES_MAX = SEGMENT_BYTES // 4  # a larger one would leave too much of a segment unused

_Segment = ctypes.c_ubyte * SEGMENT_BYTES


class FrameMemory:
    """Of one server. At most RECEIVING_FRAMES_MAX frames are being received into segments at once: however slowly they
    come, they keep no more segments than that from being used again (I15)."""

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(RECEIVE_BYTES))  # what was read is worked off before the next read
        self._free: list[mmap.mmap] = []
        self._rest = memoryview(b"")  # of the newest segment
        self._receiving = 0

    @property
    def free_segments(self) -> int:
        """Segments that wait to be used again."""
        return len(self._free)

    def take(self, size: int) -> memoryview | None:
        """Memory for a large frame of ``size`` bytes, or None if it has to go elsewhere. ``received`` must follow."""
        if not LARGE_FRAME_BYTES <= size <= SEGMENT_FRAME_BYTES_MAX or self._receiving >= RECEIVING_FRAMES_MAX:
            return None
        if size > len(self._rest):
            self._rest = self._segment()
        self._receiving += 1
        memory, self._rest = self._rest[:size], self._rest[size:]
        return memory

    def received(self) -> None:
        """A frame for which memory was taken is whole, or will never be."""
        self._receiving -= 1

    def _segment(self) -> memoryview:
        memory = self._free.pop() if self._free else _new_memory()
        segment = _Segment.from_buffer(memory)  # lives as long as any view of it
        weakref.finalize(segment, self._give_back, memory).atexit = False
        return memoryview(segment).cast("B")

    def _give_back(self, memory: mmap.mmap) -> None:
        """Called by whichever thread let go of the last view."""
        if len(self._free) < SEGMENTS_KEPT_MAX:
            self._free.append(memory)


def _new_memory() -> mmap.mmap:
    memory = mmap.mmap(-1, SEGMENT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # where the kernel has no large pages, small ones serve
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
