"""Read-ahead: the next batch of a sequential reader is read while the previous one is being sent.

Readers of single entries get more entries from the disk at once the longer they go through a ledger in order.
Read-ahead of batches serves readers that go through a ledger in order, and only while no other read waits for a
thread. Entries never change, so a batch may be read early. Read-ahead never answers "no" and never reports an error
(I6): if it holds nothing, the disk is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

from heliograph.actors.bookie.config import READ_AHEAD_SECONDS_MAX, READ_AHEADS_MAX
from heliograph.actors.bookie.disk.read_threads import ReadThreads
from heliograph.actors.bookie.store.entry_log import Records
from heliograph.actors.bookie.store.payloads import EntryPayload, ReadBuffer
from heliograph.actors.errors import BookieStorageError, EntryDamagedError
from heliograph.base.completion import shielded

READERS_MAX = 256  # readers whose next place is remembered
GAP_ENTRIES_MAX = 16  # between two entries of one reader: it asks other bookies for those in between
FIRST_BYTES = 4 << 10  # that the second read of a reader in order fetches
GROWTH = 4  # how many times as much each further read fetches

Read = Callable[[int, int, int, int, ReadBuffer], list[Records]]  # ledger, first, last, bytes wanted, memory
Place = tuple[int, int]  # ledger and entry


class _AheadBatch:
    """One batch that is being read or was read. Its buffer is free once the batch is read and not needed."""

    def __init__(self, future: asyncio.Future[list[Records]], buffer: ReadBuffer) -> None:
        self.future = future
        self.buffer = buffer
        self.timer: asyncio.TimerHandle | None = None


class SingleReadAhead:
    """Says how many bytes a read of one entry fetches: a random read nothing beyond it, as all the rest is for nothing.

    Args:
        bytes_max: for a reader that went through a ledger in order for some reads.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # By ledger and block of entries: the last entry that a read fetched, and its bytes; at most READERS_MAX (I15)
        self._ends: OrderedDict[Place, tuple[int, int]] = OrderedDict()

    def wanted(self, place: Place) -> int:
        """Return the bytes wanted from ``place`` on; 0 for its entry alone."""
        ledger_id, entry_id = place
        for block in (entry_id // GAP_ENTRIES_MAX, entry_id // GAP_ENTRIES_MAX - 1):
            end, size = self._ends.get((ledger_id, block), (entry_id, 0))
            if 0 < entry_id - end <= GAP_ENTRIES_MAX:
                del self._ends[ledger_id, block]
                return min(max(FIRST_BYTES, size * GROWTH), self._bytes_max)
        return 0

    def fetched(self, place: Place, size: int) -> None:
        """Note that a read that wanted ``size`` bytes ended with the entry at ``place``."""
        self._ends[place[0], place[1] // GAP_ENTRIES_MAX] = place[1], size
        if len(self._ends) > READERS_MAX:
            self._ends.popitem(last=False)


class RangeReadAhead:
    """Holds at most READ_AHEADS_MAX batches, each for READ_AHEAD_SECONDS_MAX (I15). Used on the event loop only."""

    def __init__(self, read: Read, threads: ReadThreads) -> None:
        """
        Args:
            read: reads a batch; it blocks and runs on one of ``threads``.
        """
        self._read = read
        self._threads = threads
        self._free = [ReadBuffer() for _ in range(READ_AHEADS_MAX)]
        self._batches: dict[Place, _AheadBatch] = {}
        self._places: OrderedDict[Place, None] = OrderedDict()  # where batches ended, and readers will continue
        self._asked: Counter[Place] = Counter()  # of the requests that are being served
        self.begun = 0
        self.hits = 0

    def continues(self, place: Place) -> bool:
        """Return whether a batch from ``place`` on continues an earlier batch or begins its ledger."""
        if place in self._places:
            del self._places[place]
            return True
        return place[1] == 0

    @contextlib.contextmanager
    def serving(self, place: Place) -> Iterator[None]:
        """Note for the block that a request from ``place`` on is being served."""
        self._asked[place] += 1
        try:
            yield
        finally:
            self._asked[place] -= 1
            if not self._asked[place]:
                del self._asked[place]

    def ended_at(self, place: Place) -> None:
        """Note that a batch was answered and ``place`` is the entry after it."""
        self._places[place] = None
        if len(self._places) > READERS_MAX:
            self._places.popitem(last=False)

    def begin(self, place: Place, last: int, bytes_wanted: int) -> None:
        """Start reading the batch from ``place`` on, unless all buffers are in use, or a request from there on is
        being served: its reader has several requests under way, and needs no read-ahead."""
        if not self._free or place in self._batches or place in self._asked:
            return
        loop = asyncio.get_running_loop()
        buffer = self._free.pop()
        read = partial(self._read, *place, last, bytes_wanted, buffer)
        batch = _AheadBatch(self._threads.begin(read), buffer)
        batch.timer = loop.call_later(READ_AHEAD_SECONDS_MAX, self._drop, place)
        self._batches[place] = batch
        self.begun += 1

    async def take(self, place: Place, last: int, bytes_wanted: int) -> tuple[EntryPayload, int] | None:
        """Return the bytes read ahead from ``place`` on, cut to the request, and their number of entries."""
        batch = self._batches.pop(place, None)
        if batch is None:
            return None
        assert batch.timer is not None, "the timer was set when the read began"
        batch.timer.cancel()
        try:
            records = await shielded(batch.future)
        except (BookieStorageError, EntryDamagedError):
            records = []  # the disk is read again, and that read reports the error
        except asyncio.CancelledError:
            self._give_back_after(batch)
            raise
        if not records:
            self._give_back(batch.buffer)
            return None
        self.hits += 1
        pieces, count = cut(records, last - place[1] + 1, bytes_wanted)
        return EntryPayload(pieces, partial(self._give_back, batch.buffer)), count

    def _drop(self, place: Place) -> None:
        self._give_back_after(self._batches.pop(place))

    def _give_back_after(self, batch: _AheadBatch) -> None:
        batch.future.add_done_callback(partial(self._give_back_done, batch.buffer))

    def _give_back_done(self, buffer: ReadBuffer, future: asyncio.Future[list[Records]]) -> None:
        future.exception()  # retrieved, so that asyncio does not log it
        self._give_back(buffer)

    def _give_back(self, buffer: ReadBuffer) -> None:
        buffer.reset()
        self._free.append(buffer)


def cut(records: list[Records], count: int, bytes_wanted: int) -> tuple[list[memoryview], int]:
    """Cut to ``count`` records and ``bytes_wanted`` bytes, one record at least; return pieces and their count."""
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
