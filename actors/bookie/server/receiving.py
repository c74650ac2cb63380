"""Cuts frames out of the memory that sockets are read into, so that a large entry is never copied on its way in.

All connections of a server share one piece of memory: the bytes of one read are processed before the next read. A
frame with a large body stays where it was read, and the next read goes behind it. So does the start of one that is
incomplete, with room for its rest; if no other connection has read meanwhile, the next read goes beyond that. Small
frames are copied by those who keep them, and the next read overwrites them. Other incomplete frames get memory of their
own, into which their rest is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from heliograph.actors.bookie.config import (
    KEPT_BODY_BYTES_LEAST,
    RECEIVE_BYTES,
    RECEIVE_LARGE_BYTES,
    RECEIVE_SLAB_BYTES,
)
from heliograph.actors.wire.frame import cut_frames
from heliograph.actors.wire.messages import BookieOp

_ADD = int(BookieOp.ADD)
_ROOM_BYTES_LEAST = 64 << 10  # with less room, a slab is full


class ReceiveMemory:
    """Slabs of memory that are read into one after the other, and used again when no view shows them any more.

    Python refuses to change the size of memory that a view shows, and by that a slab is known to be free. So what
    others hold of a slab never changes, however long they hold it.

    Attributes:
        room: the memory for one read. The next read overwrites it, unless it is kept.
    """

    def __init__(self, slabs_max: int) -> None:
        """
        Args:
            slabs_max: full slabs that are watched (I15). A further one is freed with its last view.
        """
        self._slabs_max = slabs_max
        self._slab = bytearray(RECEIVE_SLAB_BYTES)
        self._used = 0
        self.room = memoryview(self._slab)[:RECEIVE_BYTES]
        self._ends = 1  # counts the ends of what is kept: by it the holder of the last one knows that it is the last
        self._full: deque[bytearray] = deque()
        self._taken = 0  # slabs, since the last trim

    @property
    def slabs(self) -> int:
        return 1 + len(self._full)

    def room_after(self, before: int) -> memoryview:
        """Return the room of large frames and the ``before`` bytes before it, which the caller has taken last."""
        return memoryview(self._slab)[self._used - before : self._used + RECEIVE_LARGE_BYTES]

    def first(self, size: int) -> memoryview:
        """Return the first bytes of the room. There may be more of them than one read brings."""
        return memoryview(self._slab)[self._used : self._used + size]

    def keep(self, size: int) -> None:
        """Leave the first bytes of the room to those who hold views of it."""
        self._begin_room(self._used + size)
        if len(self._slab) - self._used < _ROOM_BYTES_LEAST:
            self.change_slab()

    def has_room_for(self, size: int) -> bool:
        """Return whether so many bytes from the start of the room on are in one piece."""
        return self._used + size <= len(self._slab)

    def take(self, start: int, size: int) -> tuple[memoryview, int]:
        """Return ``size`` bytes from an offset in the room on, and leave them, and those before, to their holders.

        The number returned is for ``is_last``.
        """
        place = memoryview(self._slab)[self._used + start : self._used + start + size]
        number = self._ends + 1
        self.keep(start + size)  # which may change the slab
        return place, number

    def is_last(self, number: int) -> bool:
        """Return whether the room still begins at the end of the bytes that were taken with this number."""
        return number == self._ends

    def give_back(self, size: int) -> None:
        """Move the beginning of the room back by so many bytes, the last that were taken."""
        self._begin_room(self._used - size)

    def _begin_room(self, at: int) -> None:
        self._used = at
        self.room = memoryview(self._slab)[at : at + RECEIVE_BYTES]
        self._ends += 1

    def trim(self) -> None:
        """Free the slabs that are free, except for as many as were taken since the last call."""
        spare, self._taken = self._taken, 0
        watched, self._full = self._full, deque()
        for slab in watched:
            is_free = _is_free(slab)
            if not is_free or spare > 0:
                self._full.append(slab)
            spare -= is_free

    def change_slab(self) -> None:
        """Leave the slab to those who hold views of it, and use another one from now on."""
        self._full.append(self._slab)
        self._taken += 1
        self.room = memoryview(b"")  # which would show the slab
        self._slab = self._take_free() or bytearray(RECEIVE_SLAB_BYTES)
        self._begin_room(0)

    def _take_free(self) -> bytearray | None:
        for _ in range(len(self._full)):
            slab = self._full.popleft()
            if _is_free(slab):
                return slab
            self._full.append(slab)
        if len(self._full) > self._slabs_max:
            self._full.popleft()
        return None


def _is_free(slab: bytearray) -> bool:
    try:
        slab.append(slab.pop())
    except BufferError:
        return False
    return True


def _held_in_place(body: memoryview) -> bytes | memoryview:
    return body if len(body) >= KEPT_BODY_BYTES_LEAST else bytes(body)


def _may_stay(header: list[Any], body: memoryview) -> bool:
    return len(body) >= KEPT_BODY_BYTES_LEAST and bool(header) and header[0] == _ADD


class FrameReceiver:
    """The frames of one connection. Holds one unfinished frame, in at most twice the bytes received of it (I15).

    Attributes:
        unfinished: the memory of that frame.
        held: returns a body of the last call of ``received``, or a part of one, as bytes that never change.
    """

    def __init__(self, memory: ReceiveMemory, frame_bytes_max: int, first_bytes_max: int = 0) -> None:
        """
        Args:
            memory: what all receivers of a server use.
            frame_bytes_max: largest frame that is accepted.
            first_bytes_max: the same for the first frame, if it is another.
        """
        self.frame_bytes_max = frame_bytes_max
        self._first_bytes_max = first_bytes_max  # 0: the first frame was received
        self._memory = memory
        self.held: Callable[[memoryview], bytes | memoryview] = bytes
        self.unfinished: memoryview | None = None
        self._number = 0  # of the place of an unfinished frame in a slab; 0: it is not in one
        self._held = 0
        self._wanted = 0

    @property
    def buffered(self) -> int:
        """The memory of a frame that is not complete."""
        return 0 if self.unfinished is None else len(self.unfinished)

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
        self.unfinished = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next read; it is never empty. Asyncio calls it before each read."""
        if self.unfinished is None:
            return self._memory.room
        if self._memory.is_last(self._number):
            return self._memory.room_after(self._wanted - self._held)  # so one read brings its rest and more
        return self.unfinished[self._held :]

    def received(self, count: int) -> list[tuple[list[Any], memoryview]]:
        """Return header and body of every frame that is complete now.

        Bodies are valid until the next read only, see ``held``. If most of what was read is in small frames, large ones
        are copied as well: a view of little would hold much memory (I15).

        Raises:
            FrameError: a frame exceeds the limit or its header is damaged. The connection must be closed.
        """
        is_own = False
        if self.unfinished is None:
            view = self._memory.room[:count]
        else:
            self._held += count
            if self._held < self._wanted:
                if self._held == len(self.unfinished):
                    self._hold(self.unfinished, self._wanted)
                return []
            if self._memory.is_last(self._number):
                self._memory.give_back(self._wanted)
                view = self._memory.first(self._held)
            else:
                is_own, view = True, self.unfinished
            self.unfinished = None
        frames, position, wanted = cut_frames(view, self.frame_bytes_max, self._first_bytes_max)
        if frames:
            self._first_bytes_max = 0
            if position == len(view) < KEPT_BODY_BYTES_LEAST:  # as most reads while messages come one by one
                self.held = bytes
                return frames
        large = sum([len(body) for header, body in frames if _may_stay(header, body)])
        is_begun = position < len(view) and self._begin(view, position, wanted, large, is_own=is_own)
        stays = is_own or is_begun or 2 * large >= position  # the next read does not overwrite what is returned
        self.held = _held_in_place if stays else bytes
        if large and stays and not is_own and not is_begun:
            self._memory.keep(position)
        return frames

    def _begin(self, view: memoryview, start: int, wanted: int, large: int, *, is_own: bool) -> bool:
        """Hold the start of a frame; return whether it is in a slab, where its rest goes behind it."""
        arrived = len(view) - start
        is_large = KEPT_BODY_BYTES_LEAST <= wanted <= max(2 * arrived, RECEIVE_BYTES)
        if not is_large or not (is_own or 2 * (large + wanted) >= start + wanted):
            self._hold(view[start:], wanted)
            return False
        memory = self._memory
        if not is_own and memory.has_room_for(start + wanted):
            self.unfinished, self._number = memory.take(start, wanted)
        else:
            if not memory.has_room_for(start + wanted):
                memory.change_slab()  # the room still shows frames
            self.unfinished, self._number = memory.take(0, wanted)
            self.unfinished[:arrived] = view[start:]
        self._held, self._wanted = arrived, wanted
        return True

    def _hold(self, rest: memoryview, wanted: int) -> None:
        self._held, self._wanted, self._number = len(rest), wanted, 0
        memory = memoryview(bytearray(min(wanted, max(2 * len(rest), RECEIVE_BYTES))))
        memory[: len(rest)] = rest
        self.unfinished = memory
