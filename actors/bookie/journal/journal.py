"""Group commit: all queued records are written as one batch and synced, and then the waiters are notified.

Records that arrive during a sync form the next batch, so a record never waits for a fuller batch: an idle journal
writes at once, and a busy one shares each sync among the records that arrived during the previous one. Waiters are
notified on the event loop, with one call for each batch, and never before the sync of the file that holds their records
(I1). The first batch of a new file is written after the last batch of the old file was synced.

Large payloads are copied into the next batch as they arrive, while the thread waits for the disk (``draft.py``).

A batch is committed by the journal's thread or, where ``LoopCommits`` permits it, by the event loop itself, at the end
of the turn in which its records were queued. Never both at once: the event loop commits only while the thread waits for
records, and holds the condition's lock meanwhile.

A journal that has been idle for ``seal_seconds`` writes an empty batch, the seal. The seal proves that the batch before
it was durable, which distinguishes damage from a torn tail (docs/formats-bookie.md, "End or damage?").
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from heliograph.actors.bookie.config import JOURNAL_BATCH_BYTES_MAX
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.journal.draft import BatchDraft
from heliograph.actors.bookie.journal.files import JournalFiles, ReadyFile
from heliograph.actors.bookie.journal.format import (
    RECORD_HEADER_BYTES,
    batch_bytes_of,
)
from heliograph.actors.bookie.journal.loop_commits import LOOP_BYTES_MAX, LoopCommits
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError
from heliograph.metrics.metric import LATENCY_BOUNDS, Histogram

_PLACED_BYTES_LEAST = 96 << 10  # that are queued at once, from which on their payloads are put into the draft,
_PLACED_AVERAGE_LEAST = 16 << 10  # if they are as large on average: for small ones it costs more than it saves

assert _PLACED_BYTES_LEAST > LOOP_BYTES_MAX, "the event loop never commits entries of the draft"


class JournalPosition(NamedTuple):
    """A place in a journal: everything before it is durable."""

    file_id: int
    offset: int


class JournalNote(NamedTuple):
    """Where a payload is, which is durable there."""

    payload: bytes | memoryview
    file_id: int
    offset: int


class DurabilityWaiter(Protocol):
    """The caller that queued a record and gets its outcome."""

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        """Note that the records of ``tokens`` are durable or, with ``error``, not written. Runs on the event loop."""


@dataclass(frozen=True, slots=True)
class JournalPorts:
    """How journals reach the event loop, where they notify waiters.

    Attributes:
        post: runs a function on the event loop; called from the journal's thread.
        on_failure: called on the event loop when a journal has stopped for good. Queued records stay unanswered.
        soon: runs a function on the event loop, which calls it; None: the event loop commits nothing itself.
    """

    post: Callable[[Callable[[], None]], None]
    on_failure: Callable[[BaseException], None]
    soon: Callable[[Callable[[], None]], object] | None = None


JournalItem = tuple[int, bytes | memoryview, DurabilityWaiter, Any]  # a queued record: kind, payload, waiter, token


@dataclass(slots=True)
class JournalStatistics:
    """Sums since the start; times in seconds, of a write and its sync.

    ``loop_syncs`` are those of the event loop. ``last_*`` is of the last batch alone.
    """

    syncs: int = 0
    loop_syncs: int = 0
    records: int = 0
    bytes_synced: int = 0
    sync_seconds: float = 0.0
    sync_seconds_max: float = 0.0
    latency: Histogram = field(default_factory=Histogram)  # of syncs; the sum is ``sync_seconds``
    rotations: int = 0
    last_batch_records: int = 0


class Journal:
    """The writer of one journal directory."""

    def __init__(
        self,
        files: JournalFiles,
        file_bytes: int,
        first_sequence: int,
        seal_seconds: float,
        loop_commits: LoopCommits,
        may_wait: Callable[[], bool],
        ports: JournalPorts,
        noted_bytes: int = 0,
    ) -> None:
        """
        Args:
            file_bytes: size at which the journal changes to the next file.
            first_sequence: sequence of the first record, one more than the last replayed record's.
            seal_seconds: idle time after which the last batch is sealed.
            loop_commits: which batches the event loop commits.
            may_wait: whether the event loop may wait for the disk now; called there.
            noted_bytes: payloads of this size and larger are noted with their places; 0: none is.
        """
        self._noted_bytes = noted_bytes
        self._notes: deque[JournalNote] = deque()  # of entries in the write cache, until the next checkpoint (I15)
        self._ends: dict[int, int] = {}  # of closed files, until they are recycled
        self._queued_records = 0  # since the start
        self._ended_records = 0  # those of them that are durable or were refused
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # a number of ended records, who waits for it
        self._files = files
        self._io_priority = files.io_priority
        self._file_bytes = file_bytes
        self._loop_commits = loop_commits
        self._may_wait = may_wait
        self._ports = ports
        self._sequence = first_sequence
        self._seal_seconds = seal_seconds
        self._is_sealed = True  # no batch was written yet
        self._batch = 1
        self._offset = BLOCK_BYTES  # behind the header
        self._queue: list[JournalItem] = []
        self.queued_bytes = 0  # of payloads that are queued and not in a batch yet
        self._draft = BatchDraft()  # of what is queued
        self._taken = BatchDraft()  # of the batch that is being written
        self._lock = threading.RLock()  # taken directly where nothing is notified: each add does
        self._condition = threading.Condition(self._lock)
        self._idle = False  # the thread waits for records, so the event loop may commit
        self._has_turn = False  # the event loop will look at the queue at the end of its turn
        self._batch_bytes = 0  # of the batch that it will find then
        self._waits_to_seal = False
        self._committed_at = 0.0
        self._stopping = False
        self._has_failed = False  # nothing is written any more
        self._file_id, self._tag, self._file = files.make_ready()
        self._ready: Future[ReadyFile] | None = None
        self._preparer = ThreadPoolExecutor(1, "journal-files")
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._durable_end = (self._file_id, 0)
        self.statistics = JournalStatistics()

    @property
    def is_sealed(self) -> bool:
        """Whether a later batch proves that the last batch with records is complete."""
        return self._is_sealed and not self._queue

    @property
    def position(self) -> JournalPosition:
        return JournalPosition(*self._durable_end)

    def start(self) -> None:
        self._thread.start()

    def append(self, items: list[JournalItem], size: int) -> None:
        """Queue records whose payloads have ``size`` bytes together. Does not wait for the disk."""
        with self._lock:
            self._queue += items
            self.queued_bytes += size
            self._queued_records += len(items)
            if size >= _PLACED_BYTES_LEAST and size >= _PLACED_AVERAGE_LEAST * len(items):
                self._draft.place(self._queue)
            if not self._idle:
                return
            soon, records = self._ports.soon, len(self._queue)
            size = self._batch_bytes = batch_bytes_of(records, self.queued_bytes)
            if soon is None or not self._loop_commits.permits(records, size):
                self._wake_thread()
            elif not self._has_turn:
                self._has_turn = True
                soon(self._commit_on_loop)  # after the other sockets of this turn, whose records share the sync

    def stop(self) -> None:
        """Write and sync the queued records, then end the thread. Blocks."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._preparer.shutdown()
        if self._ready is not None and self._ready.exception() is None:
            self._ready.result().file.close()
        self._file.close()

    def recycle(self, mark: JournalPosition, kept: Container[int] = ()) -> None:
        """Recycle the files before the one that holds ``mark``, except for ``kept``. The mark must be durable."""
        self._files.recycle_below(mark.file_id, kept)
        for file_id in [file_id for file_id in list(self._ends) if file_id < mark.file_id]:
            del self._ends[file_id]

    def adopt(self, path: Path) -> bool:
        return self._files.adopt(path)

    def leave_empty_file(self) -> JournalPosition:
        """Leave an empty file of version 1 behind all others, and return its begin. The journal is stopped. Blocks."""
        return JournalPosition(self._files.leave_empty_file(), 0)

    @property
    def directory(self) -> Path:
        return self._files.directory

    def end_of(self, file_id: int) -> int | None:
        """Return the offset after the last batch of a closed file of this process, until it is recycled."""
        return self._ends.get(file_id)

    def take_notes(self) -> list[JournalNote]:
        """Return the places of large payloads that became durable, each once.

        A caller that has read ``position`` before gets the notes of everything before that.
        """
        notes: list[JournalNote] = []
        while self._notes:
            notes.append(self._notes.popleft())
        return notes

    def caught_up(self) -> asyncio.Future[None]:
        """Return a future that ends when every record queued before is durable or refused. For the event loop."""
        future = asyncio.get_running_loop().create_future()
        if self._ended_records >= self._queued_records:
            future.set_result(None)
        else:
            self._waiting.append((self._queued_records, future))
        return future

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                items, size = taken
                error = self._commit(items, batch_bytes_of(len(items), size), is_on_loop=False)
                if items:  # I1: after the sync, never before
                    self._ports.post(partial(self._notify_now, items, error))
                del taken, items  # so that their memory is free while the thread waits
        except BaseException as failure:
            self._has_failed = True
            self._ports.post(partial(self._ports.on_failure, failure))

    def _take(self) -> tuple[list[JournalItem], int] | None:
        """Wait for records and return them with the bytes of their payloads; no records when a seal is due, None when
        the journal stops."""
        with self._condition:
            while not self._queue and not self._stopping and not self._has_failed:
                self._idle = True
                seconds = self._seconds_to_seal()
                if seconds is not None and seconds <= 0:
                    break
                self._waits_to_seal = seconds is not None
                self._condition.wait(seconds)
            self._idle = False
            if self._has_failed or (not self._queue and self._is_sealed):
                return None
            return self._take_queue()

    def _seconds_to_seal(self) -> float | None:
        """Return the time until the last batch is to be sealed; None if there is nothing to seal."""
        return None if self._is_sealed else self._committed_at + self._seal_seconds - time.monotonic()

    def _take_queue(self) -> tuple[list[JournalItem], int]:
        items, size = self._queue, self.queued_bytes
        self._queue, self.queued_bytes = [], 0
        self._draft, self._taken = self._taken, self._draft
        if self._draft.records:
            self._draft.clear()
        if size > JOURNAL_BATCH_BYTES_MAX:
            self._leave_for_next(items)
        return items, size - self.queued_bytes

    def _wake_thread(self) -> None:
        self._idle = False
        self._condition.notify()

    def _commit_on_loop(self) -> None:
        """Commit the queued records on the event loop, or pass them to the thread. ``append`` found the batch light."""
        with self._lock:
            self._has_turn = False
            items = self._queue
            if not self._idle or not items:
                return  # the thread has them
            size = self._batch_bytes
            is_in_file = self._offset <= self._file_bytes - size  # a change of files is for the thread
            if not is_in_file or not self._may_wait():
                self._wake_thread()
                return
            self._queue, self.queued_bytes = [], 0
            try:
                error = self._commit(items, size, is_on_loop=True)
            except Exception as failure:  # I1: nothing of the batch is confirmed, and nothing is written any more
                self._has_failed = True
                self._wake_thread()
                self._ports.on_failure(failure)
                return
            if not self._waits_to_seal:
                self._condition.notify()  # once: the thread seals when the journal has been idle
                self._waits_to_seal = True
        if error is not None:
            self._notify_now(items, error)
        elif self._waiting:
            self._end_waits()

    def _leave_for_next(self, items: list[JournalItem]) -> None:
        size = 0
        for taken, item in enumerate(items, 1):
            size += len(item[1])
            if size >= JOURNAL_BATCH_BYTES_MAX:
                self._queue = items[taken:]
                self.queued_bytes = sum(len(left[1]) for left in self._queue)
                del items[taken:]
                return

    def _commit(self, items: list[JournalItem], size: int, *, is_on_loop: bool) -> BookieStorageError | None:
        """Write one batch of ``size`` bytes and return when it is durable; return an error if nothing was written."""
        self._is_sealed = False
        is_full = self._offset > BLOCK_BYTES and self._offset + size > self._file_bytes
        if is_full and (error := self._change_file()) is not None:
            self._taken.clear()  # the event loop may write the next batch, which has none of these payloads
            self._is_sealed = not items  # a seal is not tried again
            self._ended_records += len(items)
            return error
        data, sequence = self._taken.encode(items, size, self._tag, self._sequence, self._batch)
        length = len(data)
        self._io_priority.writing.add(self)
        started = time.monotonic()
        try:
            self._file.write_durably(self._offset, data)
        finally:
            ended = time.monotonic()
            self._io_priority.written(self, ended)
        if is_on_loop:
            self._tell(items, None)  # I1: after the sync; the rest is noted while the answers are on their way
        if self._noted_bytes and size > self._noted_bytes:
            self._note_places(items)  # before the position: a mark that passes them knows them (I1)
        self._sequence, self._offset, self._batch = sequence, self._offset + length, self._batch + 1
        records, took, statistics = len(items), ended - started, self.statistics
        statistics.syncs += 1
        statistics.loop_syncs += is_on_loop
        statistics.records += records
        statistics.bytes_synced += length
        statistics.sync_seconds += took
        statistics.sync_seconds_max = max(statistics.sync_seconds_max, took)
        statistics.latency.counts[bisect_left(LATENCY_BOUNDS, took)] += 1
        if records:
            statistics.last_batch_records = records
        self._loop_commits.note(records, length, took)
        self._durable_end = (self._file_id, self._offset)
        self._ended_records += records
        self._committed_at = ended
        self._is_sealed = not items
        if self._ready is None and self._offset > self._file_bytes // 2:
            self._ready = self._preparer.submit(self._files.make_ready)
        return None

    def _note_places(self, items: list[JournalItem]) -> None:
        """Note the places of the large payloads of the batch at the current offset."""
        least = self._noted_bytes
        at = self._offset
        for _, payload, _, _ in items:
            at += RECORD_HEADER_BYTES
            if len(payload) >= least:
                self._notes.append(JournalNote(payload, self._file_id, at))
            at += len(payload)

    def _change_file(self) -> BookieStorageError | None:
        """Change to the next file, or return why there is none: nothing was written then."""
        ready, self._ready = self._ready, None
        try:
            made = ready.result() if ready is not None else self._files.make_ready()
        except DiskPoisonedError:
            raise
        except BookieStorageError as error:  # no space for another file
            return error
        self._file.close()  # its last batch was synced before its waiters were notified
        self._ends[self._file_id] = self._offset
        self._file_id, self._tag, self._file = made
        self._offset, self._batch = BLOCK_BYTES, 1
        self.statistics.rotations += 1
        return None

    def _notify_now(self, items: list[JournalItem], error: BookieStorageError | None) -> None:
        self._tell(items, error)
        if self._waiting:
            self._end_waits()

    def _tell(self, items: list[JournalItem], error: BookieStorageError | None) -> None:
        """Tell the waiters of a batch its outcome."""
        try:
            if len(items) == 1:
                _, _, waiter, token = items[0]
                waiter.on_durable([token], error)
            else:
                for waiter, tokens in _by_waiter(items).items():
                    waiter.on_durable(tokens, error)
        except Exception as broken:  # a waiter broke its promise; the event loop would only log it
            self._ports.on_failure(broken)

    def _end_waits(self) -> None:
        ended = [future for number, future in self._waiting if number <= self._ended_records]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > self._ended_records]
        for future in ended:
            if not future.done():
                future.set_result(None)


def _by_waiter(items: list[JournalItem]) -> dict[DurabilityWaiter, list[Any]]:
    """Return the tokens of each waiter, which is notified once about all of its records."""
    tokens: dict[DurabilityWaiter, list[Any]] = {}
    for _, _, waiter, token in items:
        if waiter in tokens:
            tokens[waiter].append(token)
        else:
            tokens[waiter] = [token]
    return tokens
