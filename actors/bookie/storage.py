"""The parts of a bookie's storage put together: what an add, a fence and a read do to caches, journals and directories.

Methods run on the event loop and do not block, unless they say that they do. An add is first put into the write cache,
then queued for the journal: so a fencing read that comes in between sees it (I6), and a checkpoint that takes the
journal's position sees everything before it in the cache. It is acknowledged when the journal has synced it (I1).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from actors.bookie.bodies import ReadBuffer
from actors.bookie.checkpoint import Checkpoint, Mark, write_mark
from actors.bookie.config import JOURNAL_QUEUE_BYTES_MAX, BookieConfig
from actors.bookie.data_directory import LENGTH_BYTES, DataDirectory, Records
from actors.bookie.disk import Disk
from actors.bookie.fencing import FenceEffect
from actors.bookie.index import IndexBatch, merge_runs
from actors.bookie.journal import Journal
from actors.bookie.journal_format import Kind, encode_fence, encode_lac
from actors.bookie.ledgers import LedgerState, LedgerTable
from actors.bookie.read_cache import ReadCache
from actors.bookie.write_cache import WriteCache
from actors.errors import BookieStorageError
from actors.wire.messages import LIST_RUNS_MAX, Status

ENTRY_ID_MAX = (1 << 63) - 1


class Storage:
    """One bookie's data."""

    def __init__(self, disk: Disk, config: BookieConfig, directories: list[DataDirectory]) -> None:
        """Blocks: reads all ledger records."""
        self.disk = disk
        self.config = config
        self.directories = directories
        self.journals: list[Journal] = []
        self.ledgers = LedgerTable()
        self.write_cache = WriteCache(config.write_cache_bytes)
        self.read_cache = ReadCache(config.read_cache_bytes)
        self.checkpoint_number = 0
        self.entries_added = 0
        self.on_flush_wanted: Callable[[], None] = _nothing
        self._checkpoint: Checkpoint | None = None
        self._flushed_directories: set[int] = set()
        for directory in directories:
            self.ledgers.load(directory.index.ledgers())
            self.ledgers.doubtful_to = max(self.ledgers.doubtful_to, directory.index.doubtful_to())

    def directory_of(self, ledger_id: int) -> DataDirectory:
        """Where a ledger's entries go."""
        return self.directories[ledger_id % len(self.directories)]

    def journal_of(self, ledger_id: int) -> Journal:
        """Where a ledger's records go."""
        return self.journals[ledger_id % len(self.journals)]

    # Writes

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        last_add_confirmed: int,
        data: bytes,
        *,
        is_recovery: bool,
    ) -> Status:
        """Take a verified entry into the write cache; on OK the caller queues it for the journal.

        Anything but OK has stored nothing: FENCED, or TOO_MANY_REQUESTS when a cache or queue is full.
        """
        ledgers = self.ledgers
        state = ledgers.get(ledger_id)
        if state is None:
            if ledger_id in ledgers.deleted:
                return Status.FENCED  # I4: also for recovery, since metadata says that the ledger is gone
            state = ledgers.make(ledger_id)
        if not state.fence.permits_add(is_recovery=is_recovery):
            return Status.FENCED  # I4
        cache = self.write_cache
        if not cache.has_room(len(data)) or self.journal_of(ledger_id).queued_bytes > JOURNAL_QUEUE_BYTES_MAX:
            return Status.TOO_MANY_REQUESTS
        cache.put(ledger_id, entry_id, data)
        self.entries_added += 1
        if entry_id > state.last_entry_id:
            state.last_entry_id = entry_id
        state.raise_lac(last_add_confirmed)
        ledgers.mark_changed(ledger_id)
        if cache.wants_flush:
            self.on_flush_wanted()
        return Status.OK

    def restore(self, ledger_id: int, entry_id: int, last_add_confirmed: int, data: bytes) -> bool:
        """Take an entry that a journal holds into the write cache; False when its ledger was deleted. For the start."""
        ledgers = self.ledgers
        state = ledgers.get(ledger_id)
        if state is None:
            if ledger_id in ledgers.deleted:
                return False
            state = ledgers.make(ledger_id)
        self.write_cache.active.put(ledger_id, entry_id, data)
        if entry_id > state.last_entry_id:
            state.last_entry_id = entry_id
        state.raise_lac(last_add_confirmed)
        ledgers.mark_changed(ledger_id)
        return True

    async def write_lac(self, ledger_id: int, last_add_confirmed: int) -> Status:
        """Keep an explicit LAC, durably.

        Raises:
            BookieStorageError: it may be forgotten.
        """
        if ledger_id in self.ledgers.deleted:
            return Status.FENCED
        state = self.ledgers.make(ledger_id)
        if not state.fence.is_clear:
            return Status.FENCED
        state.raise_lac(last_add_confirmed)
        self.ledgers.mark_changed(ledger_id)
        await self._journal_lac(ledger_id, last_add_confirmed)
        return Status.OK

    async def settle(self, ledger_id: int) -> None:
        """Return when everything taken for the ledger before the call is durable.

        The record that is waited for repeats the LAC, so it changes nothing.

        Raises:
            BookieStorageError: nothing may be concluded.
        """
        state = self.ledgers.get(ledger_id)
        if state is not None:
            await self._journal_lac(ledger_id, state.last_add_confirmed)

    async def _journal_lac(self, ledger_id: int, last_add_confirmed: int) -> None:
        waiter = _FutureWaiter(asyncio.get_running_loop().create_future())
        payload = encode_lac(ledger_id, last_add_confirmed)
        self.journal_of(ledger_id).append([(Kind.LAC, payload, waiter, None)], len(payload))
        await waiter.future

    async def fence(self, ledger_id: int) -> None:
        """Refuse ordinary adds from now on; returns when that is durable (I4).

        Raises:
            BookieStorageError: it could not be made durable; adds stay refused in this process.
        """
        if ledger_id in self.ledgers.deleted:
            return  # fenced for ever
        state = self.ledgers.make(ledger_id)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        effect = state.fence.request(future)
        if effect is FenceEffect.ANSWER:
            return
        if effect is FenceEffect.WRITE:
            self.ledgers.mark_changed(ledger_id)
            payload = encode_fence(ledger_id)
            self.journal_of(ledger_id).append([(Kind.FENCE, payload, _FenceWaiter(state), None)], len(payload))
        await future

    def is_fence_durable(self, ledger_id: int) -> bool:
        """Whether a fencing read needs no wait."""
        state = self.ledgers.get(ledger_id)
        return ledger_id in self.ledgers.deleted if state is None else state.fence.is_durable

    def put_into_limbo(self, ledger_id: int, *, is_fenced: bool) -> None:
        """From now on "no" is never said for the ledger (I6). For the start; durable with the next checkpoint."""
        if ledger_id in self.ledgers.deleted:
            return
        state = self.ledgers.make(ledger_id)
        state.is_limbo = True
        if is_fenced and state.fence.is_clear:
            state.fence.restore()
        self.ledgers.mark_changed(ledger_id)

    def doubt(self, last_ledger_id: int) -> None:
        """Every ledger up to this one of which nothing is known is fenced and in limbo from now on, durably (I4, I6).

        Raises:
            BookieStorageError: it could not be made durable.
        """
        for directory in self.directories:
            directory.commit(IndexBatch(doubtful_to=last_ledger_id))
        self.ledgers.doubtful_to = last_ledger_id

    # Reads

    def cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if a cache holds it."""
        data = self.write_cache.get(ledger_id, entry_id)
        if data is None:
            data = self.read_cache.get(ledger_id, entry_id)
        return data

    def negative(self, ledger_id: int) -> Status:
        """How to say that the ledger has no such entry (I6)."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            return Status.NO_LEDGER
        if state.is_limbo:
            return Status.UNKNOWN_LEDGER_STATE
        return Status.NO_LEDGER if state.last_entry_id < 0 else Status.NO_ENTRY

    def last_add_confirmed(self, ledger_id: int) -> int:
        """The highest LAC known, -1 for none."""
        state = self.ledgers.get(ledger_id)
        return -1 if state is None else state.last_add_confirmed

    def has_ledger(self, ledger_id: int) -> bool:
        """Whether anything, a fence included, is known of the ledger."""
        return self.ledgers.get(ledger_id) is not None

    def read_disk(self, ledger_id: int, entry_id: int) -> list[tuple[int, bytes]]:
        """The entry and a few after it, without their lengths; empty if there is none. Blocks.

        Raises:
            BookieStorageError, EntryDamagedError: nothing may be concluded about the entry (I6).
        """
        directory = self.directory_of(ledger_id)
        records = directory.read(ledger_id, entry_id, ENTRY_ID_MAX, self.config.read_ahead_bytes)
        return [(found, record[LENGTH_BYTES:]) for found, record in records]

    def read_batch_disk(
        self, ledger_id: int, first: int, last: int, bytes_wanted: int, buffer: ReadBuffer
    ) -> list[Records]:
        """Records (u32 length and entry) of consecutive entries, one at least if the first is there. Blocks.

        Raises:
            BookieStorageError, EntryDamagedError: nothing may be concluded about the first entry (I6).
        """
        return self.directory_of(ledger_id).read_runs(ledger_id, first, last, bytes_wanted, buffer.take)

    def spans_on_disk(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """First and last ids of the stored runs that touch ``first`` to ``last``. Blocks.

        Raises:
            BookieStorageError: the index cannot be read.
        """
        spans: list[tuple[int, int]] = []
        for run in self.directory_of(ledger_id).index.runs(ledger_id, first):
            if run.first_entry_id > last:
                break
            span = (max(run.first_entry_id, first), min(run.first_entry_id + len(run.sizes) - 1, last))
            if span[0] <= span[1]:
                spans.append(span)
                if len(spans) > 2 * LIST_RUNS_MAX:
                    spans = [(a, b) for a, b in merge_runs(spans)][:LIST_RUNS_MAX]
        return spans

    # Checkpoints

    @property
    def has_changes(self) -> bool:
        """Whether a checkpoint would have anything to write."""
        return self._checkpoint is not None or self.write_cache.entries > 0 or self.ledgers.has_changes

    def begin_checkpoint(self) -> Checkpoint:
        """Take positions, entries and ledger records in one step; or the checkpoint that failed before, as it is."""
        if self._checkpoint is None:
            positions = tuple(journal.position for journal in self.journals)  # before the swap
            self.checkpoint_number += 1
            mark = Mark(self.checkpoint_number, positions)
            self._flushed_directories.clear()
            changed, dropped = self.ledgers.take_changed(), self.ledgers.take_dropped()
            self._checkpoint = Checkpoint(mark, self.write_cache.swap(), changed, dropped)
        return self._checkpoint

    def gone_in(self, checkpoint: Checkpoint) -> frozenset[int]:
        """Deleted ledgers that the checkpoint has to do with. Ask right before handing the flush to its thread."""
        ids = {*checkpoint.half.ledgers, *(record.ledger_id for record in checkpoint.ledgers)}
        return checkpoint.dropped.union(ledger_id for ledger_id in ids if ledger_id in self.ledgers.deleted)

    def flush_checkpoint(self, checkpoint: Checkpoint, gone: frozenset[int], *, moves_mark: bool = True) -> int:
        """Entry logs, indexes, then the mark; returns bytes written to entry logs. Blocks; on the storage thread.

        Raises:
            BookieStorageError: run it again, the same.
        """
        written = 0
        count = len(self.directories)
        for number, directory in enumerate(self.directories):
            if number in self._flushed_directories:
                continue
            wanted = [n for n in checkpoint.half.ledgers if n % count == number and n not in gone]
            mine = checkpoint.half.sorted(wanted)
            records = [r for r in checkpoint.ledgers if r.ledger_id % count == number and r.ledger_id not in gone]
            deleted = [n for n in gone if n % count == number]  # I4: the mark may pass the record of a fence
            written += directory.flush(mine, records, checkpoint.mark.checkpoint, deleted)
            self._flushed_directories.add(number)
        if moves_mark:  # only now: every directory holds what the journals hold before it (I1)
            write_mark(self.disk, [directory.path for directory in self.directories], checkpoint.mark)
        return written

    def recycle_journals(self, mark: Mark) -> None:
        """Let go of journal files before a durable mark. Blocks."""
        for journal, position in zip(self.journals, mark.positions, strict=True):
            journal.recycle(position)

    def finish_checkpoint(self) -> None:
        """The checkpoint under way is durable: let its half of the write cache go."""
        assert self._checkpoint is not None, "one was begun"
        self.ledgers.deletions_noted(self._checkpoint.dropped)
        self._checkpoint = None
        self.write_cache.flushed()

    def flush_now(self, *, moves_mark: bool) -> None:
        """A whole checkpoint in one go. Blocks; for the start, when nothing else runs, and the end."""
        checkpoint = self.begin_checkpoint()
        self.flush_checkpoint(checkpoint, self.gone_in(checkpoint), moves_mark=moves_mark)
        self.finish_checkpoint()

    def close(self) -> None:
        """Stop the journals, then close the directories; everything is closed whatever fails. No flush. Blocks.

        Raises:
            BookieStorageError: the newest entry log got no map; nothing is lost by that.
        """
        with contextlib.ExitStack() as closing:
            for directory in self.directories:
                closing.callback(directory.close)
            for journal in self.journals:
                closing.callback(journal.stop)


class _FutureWaiter:
    """Ends a future when its one record is durable."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        _end(self.future, error)


class _FenceWaiter:
    """Tells a ledger's fence that its record is durable, and its waiters."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        fence = self._state.fence
        for future in fence.written() if error is None else fence.failed():
            _end(future, error)


def _end(future: asyncio.Future[None], error: BookieStorageError | None) -> None:
    if future.done():
        return  # whoever waited has gone
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _nothing() -> None:
    pass
