"""Batches that a reader will ask for next, read while the one before is on its way: so disk and socket work at once.

Only for a reader that goes through a ledger, and only while no other read waits for a thread. What is read ahead is as
good as what is read later: entries never change. It never stands for a "no" and never for an error (I6): where it holds
nothing, the disk is asked anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from actors.bookie.bodies import Body, ReadBuffer
from actors.bookie.config import READ_AHEAD_SECONDS_MAX, READ_AHEADS_MAX
from actors.bookie.data_directory import Records
from actors.errors import BookieStorageError, EntryDamagedError

READERS_MAX = 256  # whose place in a ledger is remembered

Read = Callable[[int, int, int, int, ReadBuffer], list[Records]]  # ledger, first, last, bytes wanted, memory
Place = tuple[int, int]  # ledger and entry


class _Coming:
    """One batch, being read or read. Its buffer is free again when the thread is done and nobody needs it."""

    def __init__(self, future: asyncio.Future[list[Records]], buffer: ReadBuffer) -> None:
        self.future = future
        self.buffer = buffer
        self.timer: asyncio.TimerHandle | None = None


class ReadAhead:
    """At most READ_AHEADS_MAX batches, each dropped after READ_AHEAD_SECONDS_MAX (I15). On the event loop only."""

    def __init__(self, read: Read, threads: Executor) -> None:
        """``read`` blocks; it runs on one of ``threads``."""
        self._read = read
        self._threads = threads
        self._free = [ReadBuffer() for _ in range(READ_AHEADS_MAX)]
        self._coming: dict[Place, _Coming] = {}
        self._places: OrderedDict[Place, None] = OrderedDict()  # where batches ended: readers go on there
        self.begun = 0
        self.hits = 0

    def goes_on(self, place: Place) -> bool:
        """Whether a batch from ``place`` on continues one before it, or begins its ledger."""
        if place in self._places:
            del self._places[place]
            return True
        return place[1] == 0

    def ended_at(self, place: Place) -> None:
        """A batch was answered, and ``place`` is the entry behind it."""
        self._places[place] = None
        if len(self._places) > READERS_MAX:
            self._places.popitem(last=False)

    def begin(self, place: Place, last: int, bytes_wanted: int) -> None:
        """Read the batch from ``place`` on, unless all buffers are in use."""
        if not self._free or place in self._coming:
            return
        loop = asyncio.get_running_loop()
        buffer = self._free.pop()
        read = partial(self._read, *place, last, bytes_wanted, buffer)
        coming = _Coming(loop.run_in_executor(self._threads, read), buffer)
        coming.timer = loop.call_later(READ_AHEAD_SECONDS_MAX, self._drop, place)
        self._coming[place] = coming
        self.begun += 1

    async def take(self, place: Place, last: int, bytes_wanted: int) -> tuple[Body, int] | None:
        """What was read ahead from ``place`` on, cut to what is wanted, and how many entries that is."""
        coming = self._coming.pop(place, None)
        if coming is None:
            return None
        assert coming.timer is not None, "it was set when the reading began"
        coming.timer.cancel()
        try:
            records = await asyncio.shield(coming.future)
        except (BookieStorageError, EntryDamagedError):
            records = []  # whoever reads it again will hear of it
        except asyncio.CancelledError:
            self._give_back_after(coming)
            raise
        if not records:
            self._give_back(coming.buffer)
            return None
        self.hits += 1
        pieces, count = cut(records, last - place[1] + 1, bytes_wanted)
        return Body(pieces, partial(self._give_back, coming.buffer)), count

    def _drop(self, place: Place) -> None:
        self._give_back_after(self._coming.pop(place))

    def _give_back_after(self, coming: _Coming) -> None:
        coming.future.add_done_callback(partial(self._give_back_done, coming.buffer))

    def _give_back_done(self, buffer: ReadBuffer, future: asyncio.Future[list[Records]]) -> None:
        future.exception()  # nobody has to hear of it
        self._give_back(buffer)

    def _give_back(self, buffer: ReadBuffer) -> None:
        buffer.reset()
        self._free.append(buffer)


def cut(records: list[Records], count: int, bytes_wanted: int) -> tuple[list[memoryview], int]:
    """The first ``count`` records, or as many as make up ``bytes_wanted``, but one at least; and how many they are."""
    pieces: list[memoryview] = []
    taken, size = 0, 0
    for sizes, data in records:
        end = 0
        for each in sizes:
            if taken >= count or (taken and size + each > bytes_wanted):
                return [*pieces, data[:end]], taken
            taken, size, end = taken + 1, size + each, end + each
        pieces.append(data)
    return pieces, taken
