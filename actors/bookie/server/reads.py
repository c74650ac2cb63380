"""Reading requests, one coroutine each: the fence first if requested, then the caches, then the disk on a thread.

A fencing read is answered only after its fence is durable, and "no" is answered only if the ledger's state allows it
(I4, I6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import ParamSpec, TypeVar

import msgpack

from heliograph.actors.bookie.config import DISK_READS_MAX, READ_BATCH_BYTES_MAX
from heliograph.actors.bookie.disk.read_threads import ReadThreads
from heliograph.actors.bookie.server.read_ahead import RangeReadAhead, SingleReadAhead
from heliograph.actors.bookie.store.data_directory import LENGTH_BYTES
from heliograph.actors.bookie.store.index import merge_runs
from heliograph.actors.bookie.store.payloads import NO_BODY, EntryPayload, ReadBuffer
from heliograph.actors.bookie.store.storage import ENTRY_ID_MAX, BookieStorage
from heliograph.actors.errors import BookieStorageError, BookieUnavailableError, EntryDamagedError
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES, decode_entry, encode_entry
from heliograph.actors.wire.frame import decode_batch, encode_batch
from heliograph.actors.wire.messages import (
    HEAD_BYTES,
    LEDGER_ENTRIES_MAX,
    LIST_RUNS_MAX,
    NUMBER_MAX,
    READ_LIMIT_BYTES_MAX,
    Answer,
    BookieOp,
    BookieRequest,
    Flag,
    Status,
)
from heliograph.metrics.metric import Histogram

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
READ_BUFFERS_BESIDE = 2  # buffers beyond one for each thread, for answers that are being sent
_NO_FLAGS, _FENCE = Flag.NONE, int(Flag.FENCE)  # the members of an enumeration are found slowly
_WITHOUT_ENTRY_ID = {BookieOp.READ_LAC, BookieOp.LIST_ENTRIES}
Reply = tuple[Answer, EntryPayload]


@dataclass(slots=True)
class ReadStatistics:
    """Sums since the start, by the names of their metrics."""

    reads: int = 0
    batch_reads: int = 0
    write_cache_hits: int = 0
    read_cache_hits: int = 0
    disk_reads: int = 0
    bytes_read: int = 0
    entries_damaged: int = 0
    disk_reads_failed: int = 0


class EntryReads:
    """Serves READ, READ_BATCH, READ_LAC and LIST_ENTRIES."""

    def __init__(self, storage: BookieStorage, threads: ReadThreads) -> None:
        self._storage = storage
        self._threads = threads
        self._buffers: asyncio.Queue[ReadBuffer] = asyncio.Queue()
        for _ in range(storage.config.read_threads + READ_BUFFERS_BESIDE):
            self._buffers.put_nowait(ReadBuffer())
        self.ahead = RangeReadAhead(storage.read_batch_disk, threads)
        self._singles = SingleReadAhead(storage.config.read_ahead_bytes)
        self.statistics = ReadStatistics()
        self.latency = Histogram()  # of reads that no cache could answer

    def read_cached(self, ledger_id: int, entry_id: int, flags: int) -> bytes | memoryview | None:
        """Return the entry if it can be answered at once: a cache holds it and no fence is pending."""
        if flags & _FENCE and not self._storage.is_fence_durable(ledger_id):
            return None
        if not self._storage.has_ledger(ledger_id):
            return None  # a cache may still hold entries of a deleted ledger
        data: bytes | memoryview | None = self._storage.write_cache.get(ledger_id, entry_id)
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

    async def read(self, request: BookieRequest) -> Reply:
        """Serve READ: the entry, a negative, or STORAGE_ERROR."""
        await self._fence_first(request)
        data = self.read_cached(request.ledger_id, request.entry_id, 0)
        if data is not None:
            return self._answer(request, Status.OK), EntryPayload((data,))
        data = await self._from_disk(request.ledger_id, request.entry_id)
        if data is None:
            return self._answer(request, self._storage.negative(request.ledger_id)), NO_BODY
        self.statistics.reads += 1
        self.statistics.bytes_read += len(data)
        return self._answer(request, Status.OK), EntryPayload((data,))

    async def read_batch(self, request: BookieRequest) -> Reply:
        """Serve READ_BATCH: consecutive entries up to the last one wanted, the first missing one, or ``limit`` bytes.

        The answer holds one entry at least. A negative is about the first entry. With HEADS payloads are cut, after
        ``limit`` bytes of whole entries were read.
        """
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
            body = self._cached_batch(ledger_id, first, last, limit)  # it may have been added meanwhile
        if not body.size:
            return self._answer(request, self._storage.negative(ledger_id)), NO_BODY
        self.statistics.batch_reads += 1
        self.statistics.bytes_read += body.size
        if request.flags & Flag.HEADS:
            try:
                body = heads_of(stored := body)
            finally:
                stored.release()
        return self._answer(request, Status.OK), body

    async def read_lac(self, request: BookieRequest) -> Reply:
        """Serve READ_LAC: the highest LAC known, and the stored entry with the greatest id, if there is one.

        An entry that cannot be read is left out. The fence is durable nevertheless, and a recovery that needs the
        answer may have no other bookie to ask.
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
        return self._answer(request, Status.OK), EntryPayload((data,))

    async def list_entries(self, request: BookieRequest) -> Reply:
        """Serve LIST_ENTRIES: spans of stored entry ids from ``entry_id`` (or 0) to ``last_entry_id`` (or the end).

        At most LIST_RUNS_MAX spans are listed; the client asks for the rest. An entry that is not listed may still
        exist. Listed entries are durable, because a crash must not undo a repair that relies on the list (I10).
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
            if not storage.write_cache.is_journaled:  # checked last: a refusal is notified before later records
                cached = []
        spans = merge_runs([*cached, *on_disk])[:LIST_RUNS_MAX]
        return self._answer(request, Status.OK), EntryPayload((msgpack.packb(spans),))

    async def _fence_first(self, request: BookieRequest) -> None:
        if request.flags is not _NO_FLAGS and request.flags & _FENCE:
            await self._storage.fence(request.ledger_id)  # I4, I6: durable before any answer

    async def _from_disk(self, ledger_id: int, entry_id: int) -> bytes | memoryview | None:
        storage = self._storage
        if not storage.has_ledger(ledger_id):
            return None
        wanted = self._singles.wanted((ledger_id, entry_id))
        found = await self._on_thread(storage.read_disk, ledger_id, entry_id, wanted)
        if not found:
            return storage.cached(ledger_id, entry_id)  # it may have been added meanwhile
        self._singles.fetched((ledger_id, found[-1][0]), wanted)
        for number, data in found:
            storage.read_cache.put(ledger_id, number, data)
        return found[0][1]

    async def _on_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        began = self._begin_disk_read()
        try:
            return await self._run(partial(function, *args, **kwargs))
        finally:
            self._end_disk_read(began)

    async def _run(self, function: Callable[[], T]) -> T:
        try:
            return await self._threads.begin(function)
        except EntryDamagedError as error:
            self.statistics.entries_damaged += 1
            log.error("a stored entry is damaged; its ledger can be repaired from other bookies: %s", error)
            raise BookieStorageError(str(error)) from error
        except BookieStorageError as error:
            self.statistics.disk_reads_failed += 1
            log.error("a read failed: %s", error)
            raise

    def _begin_disk_read(self) -> float:
        """Count a read that will wait for a thread; return the time.

        Raises:
            BookieUnavailableError: too many wait.
        """
        # Calls whose reader has gone count until a thread is through with them.
        if max(self._storage.disk_reads, self._threads.running) >= DISK_READS_MAX:
            raise BookieUnavailableError(f"{DISK_READS_MAX} reads are already waiting for the disk")  # I15
        self._storage.disk_reads += 1
        self.statistics.disk_reads += 1
        return perf_counter()

    def _end_disk_read(self, began: float) -> None:
        self._storage.disk_reads -= 1
        self.latency.observe(perf_counter() - began)

    async def _stored_batch(self, ledger_id: int, first: int, last: int, limit: int) -> EntryPayload:
        """Return a batch from read-ahead or from the disk; start the next read-ahead for a sequential reader."""
        place, ahead = (ledger_id, first), self.ahead
        is_sequential = ahead.continues(place)
        with ahead.serving(place):
            found = await ahead.take(place, last, limit)
            body, count = found or await self._batch_from_disk(ledger_id, first, last, limit)
        if count:
            following = first + count
            ahead.ended_at((ledger_id, following))
            has_thread = self._storage.disk_reads < self._storage.config.read_threads
            if is_sequential and has_thread and self._is_stored(ledger_id, following):
                ahead.begin((ledger_id, following), min(following + last - first, ENTRY_ID_MAX), limit)
        return body

    def _is_stored(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether an entry is probably on the disk and in no cache."""
        state = self._storage.ledgers.get(ledger_id)
        if state is None or entry_id > state.last_entry_id:
            return False
        return self._storage.write_cache.get(ledger_id, entry_id) is None

    async def _batch_from_disk(self, ledger_id: int, first: int, last: int, limit: int) -> tuple[EntryPayload, int]:
        """Read a batch; return it and its number of entries."""
        began = self._begin_disk_read()
        try:
            buffer = await self._buffers.get()
            read = partial(self._storage.read_batch_disk, ledger_id, first, last, limit, buffer)
            try:
                records = await self._run(read)
            except asyncio.CancelledError:
                self._give_back(ReadBuffer())  # a new one: the thread may still write to the old one
                raise
            except BaseException:
                self._give_back(buffer)
                raise
        finally:
            self._end_disk_read(began)
        pieces = [data for _, data in records]
        return EntryPayload(pieces, lambda: self._give_back(buffer)), sum([len(sizes) for sizes, _ in records])

    def _give_back(self, buffer: ReadBuffer) -> None:
        buffer.reset()
        self._buffers.put_nowait(buffer)

    def _cached_batch(self, ledger_id: int, first: int, last: int, limit: int) -> EntryPayload:
        pieces: list[bytes | memoryview] = []
        size = 0
        for entry_id in range(first, last + 1):
            data = self._storage.write_cache.get(ledger_id, entry_id)
            if data is None or (pieces and size + len(data) + LENGTH_BYTES > limit):
                break
            pieces += (len(data).to_bytes(LENGTH_BYTES, "big"), data)
            size += len(data) + LENGTH_BYTES
        self.statistics.write_cache_hits += bool(pieces)
        return EntryPayload(pieces)

    def _answer(self, request: BookieRequest, status: Status, text: str = "") -> Answer:
        lac = self._storage.last_add_confirmed(request.ledger_id)
        return Answer(request.request_id, status, lac, text)


def range_fault(request: BookieRequest) -> str:
    """Return which field of a request is out of range, "" if none is."""
    op, _, ledger_id, entry_id, _, limit, last_entry_id = request
    if op is BookieOp.STATISTICS:
        return ""
    least = -1 if op in _WITHOUT_ENTRY_ID else 0
    if not 0 <= ledger_id <= NUMBER_MAX:
        return f"{op.name} has ledger_id {ledger_id}, from 0 to 2**63 - 1 is required"
    if not least <= entry_id < LEDGER_ENTRIES_MAX:
        return f"{op.name} has entry_id {entry_id}, from {least} to 2**48 - 1 is required"
    if not 0 <= limit <= READ_LIMIT_BYTES_MAX:
        return f"{op.name} has limit {limit}, from 0 to 2**31 - 1 is required"
    if not -1 <= last_entry_id < LEDGER_ENTRIES_MAX:
        return f"{op.name} has last_entry_id {last_entry_id}, from -1 to 2**48 - 1 is required"
    return ""


def heads_of(stored: EntryPayload) -> EntryPayload:
    """Return the body of a batch with payloads that are cut after HEAD_BYTES, up to the first damaged entry.

    The checksum of each whole entry is compared here, because its reader cannot do so. An entry that is cut gets the
    checksum of what is left.

    Raises:
        BookieStorageError: the first entry is damaged.
    """
    heads: list[bytes | memoryview] = []
    for data in decode_batch(b"".join(stored.pieces)):
        try:
            entry = decode_entry(data)
        except EntryDamagedError as error:
            if not heads:
                raise BookieStorageError(f"a stored entry is damaged: {error}") from error
            break
        if len(data) <= ENTRY_HEADER_BYTES + HEAD_BYTES:
            heads.append(data)
        else:
            cut = entry.payload[:HEAD_BYTES]
            heads.append(encode_entry(entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, cut))
    return EntryPayload((encode_batch(heads),))
