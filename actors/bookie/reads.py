"""Reading requests, one coroutine each: fence first where asked, then caches, then the disk on a reader thread.

No answer to a fencing read is made up before its fence is durable, and a negative is only said where the ledger's
state allows it (I4, I6).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

import msgpack

from actors.bookie.bodies import NO_BODY, Body, ReadBuffer
from actors.bookie.config import DISK_READS_MAX, LONG_POLL_MS_MAX, READ_BATCH_BYTES_MAX
from actors.bookie.data_directory import LENGTH_BYTES
from actors.bookie.index import merge_runs
from actors.bookie.read_ahead import ReadAhead
from actors.bookie.storage import ENTRY_ID_MAX, Storage
from actors.errors import BookieStorageError, BookieUnavailableError, EntryDamagedError
from actors.wire.messages import LIST_RUNS_MAX, Answer, Flag, Request, Status

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
READ_BUFFERS_BESIDE = 2  # beyond one for each thread: answers on their way to a socket
Reply = tuple[Answer, Body]


@dataclass(slots=True)
class ReadStatistics:
    """Sums since the start."""

    reads: int = 0
    batch_reads: int = 0
    write_cache_hits: int = 0
    read_cache_hits: int = 0
    disk_reads: int = 0
    bytes_read: int = 0
    damaged: int = 0
    failed: int = 0


class Reads:
    """Serves READ, READ_BATCH, READ_LAC, LIST_ENTRIES and LONG_POLL_LAC."""

    def __init__(self, storage: Storage, threads: ThreadPoolExecutor) -> None:
        self._storage = storage
        self._threads = threads
        self._disk_reads = 0
        self._buffers: asyncio.Queue[ReadBuffer] = asyncio.Queue()
        for _ in range(storage.config.read_threads + READ_BUFFERS_BESIDE):
            self._buffers.put_nowait(ReadBuffer())
        self.ahead = ReadAhead(storage.read_batch_disk, threads)
        self.statistics = ReadStatistics()

    def read_cached(self, ledger_id: int, entry_id: int, flags: int) -> bytes | None:
        """The entry, when it can be answered at once: no fence to wait for, and a cache holds it."""
        if flags & Flag.FENCE and not self._storage.is_fence_durable(ledger_id):
            return None
        if not self._storage.has_ledger(ledger_id):
            return None  # a cache may still hold entries of a ledger that was deleted
        data = self._storage.write_cache.get(ledger_id, entry_id)
        if data is not None:
            self.statistics.write_cache_hits += 1
        else:
            data = self._storage.read_cache.get(ledger_id, entry_id)
            if data is None:
                return None
            self.statistics.read_cache_hits += 1
        self.statistics.reads += 1
        self.statistics.bytes_read += len(data)
        return data

    async def read(self, request: Request) -> Reply:
        """READ: the entry, or a negative, or STORAGE_ERROR."""
        await self._fence_first(request)
        data = self.read_cached(request.ledger_id, request.entry_id, 0)
        if data is not None:
            return self._answer(request, Status.OK), Body((data,))
        data = await self._from_disk(request.ledger_id, request.entry_id)
        if data is None:
            return self._answer(request, self._storage.negative(request.ledger_id)), NO_BODY
        self.statistics.reads += 1
        self.statistics.bytes_read += len(data)
        return self._answer(request, Status.OK), Body((data,))

    async def read_batch(self, request: Request) -> Reply:
        """READ_BATCH: entries from the first wanted on, up to the first that is not there, the last wanted, or
        ``limit`` bytes (but one at least). A negative is about the first."""
        await self._fence_first(request)
        ledger_id, first = request.ledger_id, request.entry_id
        last = request.last_entry_id if request.last_entry_id >= 0 else ENTRY_ID_MAX
        if first > last:
            return self._answer(request, Status.BAD_REQUEST, f"entries {first} to {last}"), NO_BODY
        if not self._storage.has_ledger(ledger_id):
            return self._answer(request, self._storage.negative(ledger_id)), NO_BODY
        limit = max(1, min(request.limit or READ_BATCH_BYTES_MAX, READ_BATCH_BYTES_MAX))
        body = self._cached_batch(ledger_id, first, last, limit)
        if not body.size:
            body = await self._stored_batch(ledger_id, first, last, limit)
        if not body.size:
            body.release()
            body = self._cached_batch(ledger_id, first, last, limit)  # it may have come meanwhile
        if not body.size:
            return self._answer(request, self._storage.negative(ledger_id)), NO_BODY
        self.statistics.batch_reads += 1
        self.statistics.bytes_read += body.size
        return self._answer(request, Status.OK), body

    async def read_lac(self, request: Request) -> Reply:
        """READ_LAC: the highest LAC known, and the stored entry with the greatest id, if any.

        An entry that cannot be read is left out: the fence stands all the same, and a recovery that needs to hear of it
        may have no other bookie to ask.
        """
        await self._fence_first(request)
        ledger_id = request.ledger_id
        state = self._storage.ledgers.get(ledger_id)
        if state is None:
            return self._answer(request, self._storage.negative(ledger_id)), NO_BODY
        if state.last_entry_id < 0:
            is_known = state.last_add_confirmed >= 0 and not state.is_limbo
            return self._answer(request, Status.OK if is_known else self._storage.negative(ledger_id)), NO_BODY
        data = self._storage.cached(ledger_id, state.last_entry_id)
        if data is None:
            try:
                data = await self._from_disk(ledger_id, state.last_entry_id)
            except (BookieStorageError, EntryDamagedError):
                return self._answer(request, Status.OK), NO_BODY
        if data is None:
            text = f"entry {ledger_id}:{state.last_entry_id} was stored and is not found"
            return self._answer(request, Status.STORAGE_ERROR, text), NO_BODY  # I6: not a negative
        return self._answer(request, Status.OK), Body((data,))

    async def list_entries(self, request: Request) -> Reply:
        """LIST_ENTRIES: spans of stored entry ids from ``entry_id`` (or 0) to ``last_entry_id`` (or the end); at most
        LIST_RUNS_MAX, after which the rest has to be asked for. The list is no vote: what is not in it may be there.
        What is in it is durable: a repair that rests on it must not be undone by a crash (I10).
        """
        await self._fence_first(request)
        ledger_id, storage = request.ledger_id, self._storage
        if not storage.has_ledger(ledger_id):
            return self._answer(request, storage.negative(ledger_id)), NO_BODY
        first = max(request.entry_id, 0)
        last = request.last_entry_id if request.last_entry_id >= 0 else ENTRY_ID_MAX
        cached = [(n, n) for n in storage.write_cache.entry_ids(ledger_id) if first <= n <= last]  # before the disk
        on_disk = await self._on_thread(storage.spans_on_disk, ledger_id, first, last)
        if cached:
            await storage.settle(ledger_id)
            if not storage.write_cache.is_journaled:  # asked last: a refusal is told before what comes behind it
                cached = []
        spans = merge_runs([*cached, *on_disk])[:LIST_RUNS_MAX]
        return self._answer(request, Status.OK), Body((msgpack.packb(spans),))

    async def long_poll_lac(self, request: Request) -> Reply:
        """LONG_POLL_LAC: OK when the LAC is above ``entry_id``, or after ``limit`` ms whatever it is."""
        ledger_id = request.ledger_id
        state = self._storage.ledgers.get(ledger_id)
        if state is None or (state.is_limbo and state.last_add_confirmed < 0):
            return self._answer(request, self._storage.negative(ledger_id)), NO_BODY
        if state.last_add_confirmed <= request.entry_id:
            news = asyncio.Event()

            def listener(last_add_confirmed: int) -> None:
                if last_add_confirmed > request.entry_id or ledger_id in self._storage.ledgers.deleted:
                    news.set()

            if state.lac_listeners is None:
                state.lac_listeners = []
            state.lac_listeners.append(listener)
            try:
                async with asyncio.timeout(min(request.limit, LONG_POLL_MS_MAX) / 1000):
                    await news.wait()
            except TimeoutError:
                pass
            finally:
                state.lac_listeners.remove(listener)
        return self._answer(request, Status.OK), NO_BODY

    async def _fence_first(self, request: Request) -> None:
        if request.flags & Flag.FENCE:
            await self._storage.fence(request.ledger_id)  # I4, I6: durable before any answer

    async def _from_disk(self, ledger_id: int, entry_id: int) -> bytes | None:
        storage = self._storage
        if not storage.has_ledger(ledger_id):
            return None
        found = await self._on_thread(storage.read_disk, ledger_id, entry_id)
        if not found:
            return storage.cached(ledger_id, entry_id)  # it may have come meanwhile
        for number, data in found:
            storage.read_cache.put(ledger_id, number, data)
        return found[0][1]

    async def _on_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._counted():
            return await self._run(partial(function, *args, **kwargs))

    async def _run(self, function: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except EntryDamagedError as error:
            self.statistics.damaged += 1
            _log.error("a stored entry is damaged; its ledger can be repaired from other bookies: %s", error)
            raise BookieStorageError(str(error)) from error
        except BookieStorageError as error:
            self.statistics.failed += 1
            _log.error("a read failed: %s", error)
            raise

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        if self._disk_reads >= DISK_READS_MAX:
            raise BookieUnavailableError(f"{DISK_READS_MAX} reads wait for the disk already")  # I15
        self._disk_reads += 1
        self.statistics.disk_reads += 1
        try:
            yield
        finally:
            self._disk_reads -= 1

    async def _stored_batch(self, ledger_id: int, first: int, last: int, limit: int) -> Body:
        """A batch that was read ahead, or one from the disk; and have the next one read if it will be wanted."""
        place, ahead = (ledger_id, first), self.ahead
        goes_on = ahead.goes_on(place)
        found = await ahead.take(place, last, limit)
        body, count = found or await self._batch_from_disk(ledger_id, first, last, limit)
        if count:
            following = first + count
            ahead.ended_at((ledger_id, following))
            has_thread = self._disk_reads < self._storage.config.read_threads
            if goes_on and has_thread and self._is_stored(ledger_id, following):
                ahead.begin((ledger_id, following), min(following + last - first, ENTRY_ID_MAX), limit)
        return body

    def _is_stored(self, ledger_id: int, entry_id: int) -> bool:
        """Whether an entry is likely to be on the disk, and nowhere else."""
        state = self._storage.ledgers.get(ledger_id)
        if state is None or entry_id > state.last_entry_id:
            return False
        return self._storage.write_cache.get(ledger_id, entry_id) is None

    async def _batch_from_disk(self, ledger_id: int, first: int, last: int, limit: int) -> tuple[Body, int]:
        """The batch, and how many entries it has."""
        with self._counted():
            buffer = await self._buffers.get()
            read = partial(self._storage.read_batch_disk, ledger_id, first, last, limit, buffer)
            try:
                records = await self._run(read)
            except asyncio.CancelledError:
                self._give_back(ReadBuffer())  # the thread may still write to this one
                raise
            except BaseException:
                self._give_back(buffer)
                raise
        pieces = [data for _, data in records]
        return Body(pieces, lambda: self._give_back(buffer)), sum([len(sizes) for sizes, _ in records])

    def _give_back(self, buffer: ReadBuffer) -> None:
        buffer.reset()
        self._buffers.put_nowait(buffer)

    def _cached_batch(self, ledger_id: int, first: int, last: int, limit: int) -> Body:
        pieces: list[bytes] = []
        size = 0
        for entry_id in range(first, last + 1):
            data = self._storage.write_cache.get(ledger_id, entry_id)
            if data is None or (pieces and size + len(data) + LENGTH_BYTES > limit):
                break
            pieces += (len(data).to_bytes(LENGTH_BYTES, "big"), data)
            size += len(data) + LENGTH_BYTES
        self.statistics.write_cache_hits += bool(pieces)
        return Body(pieces)

    def _answer(self, request: Request, status: Status, text: str = "") -> Answer:
        lac = self._storage.last_add_confirmed(request.ledger_id)
        return Answer(request.request_id, status, lac, text)
