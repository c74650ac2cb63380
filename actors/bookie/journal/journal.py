"""Group commit: one thread writes all queued records as one batch, syncs the file, and notifies the waiters.

Records that arrive during a sync form the next batch, so a record never waits for a fuller batch: an idle journal
writes at once, and a busy one shares each sync among the records that arrived during the previous one. Waiters are
notified on the event loop, with one call for each batch, and never before the sync of the file that holds their records
(I1). The first batch of a new file is written after the last batch of the old file was synced.

A journal that has been idle for ``seal_seconds`` writes an empty batch, the seal. The seal proves that the batch before
it was durable, which distinguishes damage from a torn tail (docs/formats-bookie.md, "End or damage?").
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from heliograph.actors.bookie.config import JOURNAL_BATCH_BYTES_MAX
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES, BlockBuffer
from heliograph.actors.bookie.disk.disk import DiskFile
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.format import batch_bytes, encode_batch, encode_file_header
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError

_BUFFER_BYTES = 1 << 20  # initial size of the batch buffer, which grows with the largest batch


class JournalPosition(NamedTuple):
    """A place in a journal: everything before it is durable."""

    file_id: int
    offset: int


class DurabilityWaiter(Protocol):
    """The one who queued a record and is told about its outcome."""

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        """Note that the records of ``tokens`` are durable or, with ``error``, not written. Runs on the event loop."""


JournalItem = tuple[int, bytes, DurabilityWaiter, Any]  # a queued record: kind, payload, waiter, token


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Sums since the start; times in seconds. ``last_*`` is of the last batch alone."""

    syncs: int = 0
    records: int = 0
    bytes_synced: int = 0
    sync_seconds: float = 0.0
    sync_seconds_max: float = 0.0
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
        post: Callable[[Callable[[], None]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """
        Args:
            file_bytes: size at which the journal changes to the next file.
            first_sequence: sequence of the first record, one more than that of the last replayed record.
            seal_seconds: idle time after which the last batch is sealed.
            post: runs a function on the event loop; called from the journal's thread.
            on_failure: called on the event loop when the journal has stopped for good. Queued records stay unanswered.
        """
        self._files = files
        self._file_bytes = file_bytes
        self._post = post
        self._on_failure = on_failure
        self._sequence = first_sequence
        self._seal_seconds = seal_seconds
        self._is_sealed = True  # no batch was written yet
        self._batch = 1
        self._offset = 0
        self._rotations = 0
        self._queue: list[JournalItem] = []
        self._queued_bytes = 0
        self._buffer = BlockBuffer(_BUFFER_BYTES)
        self._condition = threading.Condition()
        self._idle = False
        self._stopping = False
        self._file_id, self._file = files.make_ready()
        self._ready: Future[tuple[int, DiskFile]] | None = None
        self._preparer = ThreadPoolExecutor(1, "journal-files")
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self.position = JournalPosition(self._file_id, 0)
        self.statistics = JournalStatistics()

    @property
    def is_sealed(self) -> bool:
        """Whether a later batch proves that the last batch with records is complete."""
        return self._is_sealed and not self._queue

    @property
    def queued_bytes(self) -> int:
        """Payload bytes that are queued and not in a batch yet."""
        return self._queued_bytes

    def start(self) -> None:
        """Start the journal's thread."""
        self._thread.start()

    def append(self, items: list[JournalItem], size: int) -> None:
        """Queue records whose payloads have ``size`` bytes together. Does not wait for the disk."""
        with self._condition:
            self._queue += items
            self._queued_bytes += size
            if self._idle:
                self._idle = False
                self._condition.notify()

    def stop(self) -> None:
        """Write and sync the queued records, then end the thread. Blocks."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._preparer.shutdown()
        if self._ready is not None and self._ready.exception() is None:
            self._ready.result()[1].close()
        self._file.close()

    def recycle(self, mark: JournalPosition) -> None:
        """Recycle the files before the one that holds ``mark``. The mark must be durable."""
        self._files.recycle_below(mark.file_id)

    def _run(self) -> None:
        try:
            while (items := self._take()) is not None:
                self._commit(items)
        except BaseException as error:
            failure = error
            self._post(lambda: self._on_failure(failure))

    def _take(self) -> list[JournalItem] | None:
        """Wait for records and return them; an empty list when a seal is due, None when the journal stops."""
        with self._condition:
            while not self._queue and not self._stopping:
                self._idle = True
                if not self._condition.wait(None if self._is_sealed else self._seal_seconds):
                    break
            self._idle = False
            items, size = self._queue, self._queued_bytes
            if not items and self._is_sealed and self._stopping:
                return None
            self._queue, self._queued_bytes = [], 0
            if size > JOURNAL_BATCH_BYTES_MAX:
                self._leave_for_next(items)
            return items

    def _leave_for_next(self, items: list[JournalItem]) -> None:
        size = 0
        for taken, item in enumerate(items, 1):
            size += len(item[1])
            if size >= JOURNAL_BATCH_BYTES_MAX:
                self._queue = items[taken:]
                self._queued_bytes = sum(len(left[1]) for left in self._queue)
                del items[taken:]
                return

    def _commit(self, items: list[JournalItem]) -> None:
        size = batch_bytes(items)
        self._is_sealed = False
        try:
            self._make_room(size)
        except DiskPoisonedError:
            raise
        except BookieStorageError as error:  # no space for another file: nothing of this batch was written
            self._is_sealed = not items  # a seal is not tried again
            self._notify(items, error)
            return
        length, sequence = self._encode(items, size)
        with self._files.io_priority:
            self._file.write_at(self._offset, self._buffer.view(length))
            started = time.perf_counter()
            self._file.sync()
            took = time.perf_counter() - started
        self._sequence, self._offset, self._batch = sequence, self._offset + length, self._batch + 1
        self._count(len(items), length, took)
        self.position = JournalPosition(self._file_id, self._offset)
        self._is_sealed = not items
        if items:
            self._notify(items, None)  # I1: after the sync, never before
        if self._ready is None and self._offset > self._file_bytes // 2:
            self._ready = self._preparer.submit(self._files.make_ready)

    def _encode(self, items: list[JournalItem], size: int) -> tuple[int, int]:
        """Encode the batch into the buffer, with the header of a new file; return its bytes and the next sequence."""
        start = 0
        self._buffer.reserve(BLOCK_BYTES + size)
        if self._offset == 0:
            header = encode_file_header(self._file_id, self._sequence, self._file.size())
            start = len(header)
            self._buffer.memory[:start] = header
        return encode_batch(self._buffer.memory, start, items, self._file_id, self._sequence, self._batch)

    def _make_room(self, size: int) -> None:
        if self._offset == 0 or self._offset + size <= self._file_bytes:
            return
        ready, self._ready = self._ready, None
        file_id, file = ready.result() if ready is not None else self._files.make_ready()
        self._file.close()  # its last batch was synced before its waiters were notified
        self._file_id, self._file = file_id, file
        self._offset, self._batch = 0, 1
        self._rotations += 1

    def _count(self, records: int, size: int, took: float) -> None:
        old = self.statistics
        self.statistics = JournalStatistics(
            syncs=old.syncs + 1,
            records=old.records + records,
            bytes_synced=old.bytes_synced + size,
            sync_seconds=old.sync_seconds + took,
            sync_seconds_max=max(old.sync_seconds_max, took),
            rotations=self._rotations,
            last_batch_records=records or old.last_batch_records,
        )

    def _notify(self, items: list[JournalItem], error: BookieStorageError | None) -> None:
        def notify() -> None:
            try:
                notify_waiters(items, error)
            except Exception as broken:  # a waiter broke its promise; the event loop would only log it
                self._on_failure(broken)

        self._post(notify)


def notify_waiters(items: list[JournalItem], error: BookieStorageError | None) -> None:
    """Notify each waiter once, about all of its records."""
    tokens: dict[DurabilityWaiter, list[Any]] = {}
    for _, _, waiter, token in items:
        if waiter in tokens:
            tokens[waiter].append(token)
        else:
            tokens[waiter] = [token]
    for waiter, its_tokens in tokens.items():
        waiter.on_durable(its_tokens, error)
