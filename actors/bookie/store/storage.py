"""A bookie's storage: what an add, a fence and a read do to caches, journals and data directories.

Methods run on the event loop and do not block, unless they say so. An add goes into the write cache first and is then
queued for the journal: a fencing read between the two sees it (I6), and a checkpoint that takes the journal's position
finds everything before it in the cache. The add is acknowledged when the journal has synced it (I1).
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from heliograph.actors.bookie.config import JOURNAL_QUEUE_BYTES_MAX, BookieConfig
from heliograph.actors.bookie.disk.blocks import new_memory
from heliograph.actors.bookie.disk.disk import Disk
from heliograph.actors.bookie.journal.files import file_id_of, used_path
from heliograph.actors.bookie.journal.format import Kind, encode_fence, encode_lac
from heliograph.actors.bookie.journal.journal import Journal, JournalItem
from heliograph.actors.bookie.store.checkpoint import KEPT_VERSION, PLAIN_VERSION, Checkpoint, Mark, write_mark
from heliograph.actors.bookie.store.data_directory import LENGTH_BYTES, DataDirectory
from heliograph.actors.bookie.store.durability import NOBODY, FenceWaiter, FutureWaiter
from heliograph.actors.bookie.store.entry_log import EntryRun, Records
from heliograph.actors.bookie.store.fencing import FenceEffect
from heliograph.actors.bookie.store.index import IndexBatch, merge_runs
from heliograph.actors.bookie.store.kept_log import kept_runs
from heliograph.actors.bookie.store.ledgers import LedgerTable
from heliograph.actors.bookie.store.payloads import ReadBuffer
from heliograph.actors.bookie.store.read_cache import ReadCache
from heliograph.actors.bookie.store.write_cache import CacheHalf, WriteCache
from heliograph.actors.wire.entry import entry_head
from heliograph.actors.wire.messages import LIST_RUNS_MAX, Status

ENTRY_ID_MAX = (1 << 63) - 1
KEPT_SHARE_LEAST = 0.5  # of the flushed bytes of a journal, for which its files are kept
_OK = Status.OK  # the members of an enumeration are found slowly, and each add needs this one
PLACES_WAIT_SECONDS_MAX = 1.0  # of a checkpoint, until journals have written what was queued

Routes = tuple[tuple[int, int], ...]  # from a ledger id on: how many data directories the ledgers are spread over


class BookieStorage:
    """The stored data of one bookie."""

    def __init__(self, disk: Disk, config: BookieConfig, directories: list[DataDirectory], routes: Routes = ()) -> None:
        """Load all ledger records. Blocks.

        Args:
            routes: of the bookie's cookie; empty if no directory ever joined.
        """
        self._routes = routes or ((0, len(directories)),)
        self._route_firsts = [first for first, _ in self._routes]
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
        self.disk_reads = 0  # disk reads queued for a reader thread or running on one
        self._checkpoint: Checkpoint | None = None
        self._flushed_directories: set[int] = set()
        self._mark: Mark | None = None  # the one that every directory has, once this process has written it
        self.bytes_kept = 0  # of entries that stay in journal files, since the start
        for directory in directories:
            self.ledgers.load(directory.index.ledgers())
            self.ledgers.doubtful_to = max(self.ledgers.doubtful_to, directory.index.doubtful_to())

    def directory_of(self, ledger_id: int) -> DataDirectory:
        return self.directories[self._place_of(ledger_id)]

    def _place_of(self, ledger_id: int) -> int:
        """Return the place of a ledger's directory. It never changes: ledgers from before a directory joined stay."""
        route = 0 if len(self._routes) == 1 else max(0, bisect_right(self._route_firsts, ledger_id) - 1)
        return ledger_id % self._routes[route][1]

    def journal_of(self, ledger_id: int) -> Journal:
        return self.journals[ledger_id % len(self.journals)]

    def may_wait_for_disk(self) -> bool:
        """Return whether the event loop may wait for one journal: no read and no other journal would wait with it."""
        if self.disk_reads:
            return False
        journals = self.journals
        return len(journals) == 1 or sum([journal.queued_bytes > 0 for journal in journals]) <= 1

    # -- writes

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        last_add_confirmed: int,
        data: bytes | memoryview,
        *,
        is_recovery: bool,
    ) -> Status:
        """Put a verified entry into the write cache. On OK the caller queues it for the journal.

        ``data`` must never change. Any other status has stored nothing: FENCED, or TOO_MANY_REQUESTS when the cache is
        full.
        """
        ledgers = self.ledgers
        state = ledgers.by_id.get(ledger_id)
        if state is None:
            if ledger_id in ledgers.deleted:
                return Status.FENCED  # I4: also for recovery, since metadata says that the ledger is gone
            state = ledgers.make(ledger_id)
        if not state.fence.permits_add(is_recovery=is_recovery):
            return Status.FENCED  # I4
        cache = self.write_cache
        if len(data) > cache.room_bytes:
            return Status.TOO_MANY_REQUESTS
        cache.put(ledger_id, entry_id, data)
        self.entries_added += 1
        if entry_id > state.last_entry_id:
            state.last_entry_id = entry_id
        if last_add_confirmed > state.last_add_confirmed:
            state.last_add_confirmed = last_add_confirmed  # I2: only grows
        ledgers.changed.add(ledger_id)
        if cache.room_bytes < cache.calm_room_bytes and cache.needs_flush:
            self.on_flush_wanted()
        return _OK

    def restore(self, ledger_id: int, entry_id: int, last_add_confirmed: int, data: bytes) -> bool:
        """Put an entry of a journal into the write cache during the start; return False if its ledger was deleted."""
        ledgers = self.ledgers
        state = ledgers.get(ledger_id)
        if state is None:
            if ledger_id in ledgers.deleted:
                return False
            state = ledgers.make(ledger_id)
        self.write_cache.put(ledger_id, entry_id, data)
        if entry_id > state.last_entry_id:
            state.last_entry_id = entry_id
        state.raise_lac(last_add_confirmed)
        ledgers.changed.add(ledger_id)
        return True

    async def write_lac(self, ledger_id: int, last_add_confirmed: int) -> Status:
        """Store an explicit LAC durably.

        Raises:
            BookieStorageError: the LAC may not survive a crash.
        """
        if not self._raise_lac(ledger_id, last_add_confirmed):
            return Status.FENCED
        await self._journal_lac(ledger_id, last_add_confirmed)
        return Status.OK

    def take_lacs(self, lacs: Iterable[tuple[int, int]]) -> None:
        """Store explicit LACs of ledgers whose writers do not wait for that. LACs of fenced ledgers are ignored, and
        LACs that the journal's queue has no room for are not durable."""
        queued: dict[Journal, list[JournalItem]] = {}
        for ledger_id, last_add_confirmed in lacs:
            journal = self.journal_of(ledger_id)
            if self._raise_lac(ledger_id, last_add_confirmed) and journal.queued_bytes <= JOURNAL_QUEUE_BYTES_MAX:
                item = (int(Kind.LAC), encode_lac(ledger_id, last_add_confirmed), NOBODY, None)
                queued.setdefault(journal, []).append(item)
        for journal, items in queued.items():
            journal.append(items, sum([len(payload) for _, payload, _, _ in items]))

    def _raise_lac(self, ledger_id: int, last_add_confirmed: int) -> bool:
        """Note an explicit LAC. Return False if the ledger is fenced or deleted."""
        if ledger_id in self.ledgers.deleted:
            return False
        state = self.ledgers.make(ledger_id)
        if not state.fence.is_clear:
            return False
        state.raise_lac(last_add_confirmed)
        self.ledgers.changed.add(ledger_id)
        return True

    async def settle(self, ledger_id: int) -> None:
        """Wait until everything that was taken for the ledger before the call is durable.

        The journal record that is waited for repeats the LAC, so it changes nothing.

        Raises:
            BookieStorageError: whether it is durable is unknown.
        """
        state = self.ledgers.get(ledger_id)
        if state is not None:
            await self._journal_lac(ledger_id, state.last_add_confirmed)

    async def _journal_lac(self, ledger_id: int, last_add_confirmed: int) -> None:
        waiter = FutureWaiter()
        payload = encode_lac(ledger_id, last_add_confirmed)
        self.journal_of(ledger_id).append([(Kind.LAC, payload, waiter, None)], len(payload))
        await waiter.future

    async def fence(self, ledger_id: int) -> None:
        """Refuse ordinary adds from now on; return when the fence is durable (I4).

        Raises:
            BookieStorageError: the fence could not be made durable. This process keeps refusing adds.
        """
        if ledger_id in self.ledgers.deleted:
            return  # a deleted ledger stays fenced
        state = self.ledgers.make(ledger_id)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        effect = state.fence.request(future)
        if effect is FenceEffect.ANSWER:
            return
        if effect is FenceEffect.WRITE:
            self.ledgers.changed.add(ledger_id)
            payload = encode_fence(ledger_id)
            self.journal_of(ledger_id).append([(Kind.FENCE, payload, FenceWaiter(state), None)], len(payload))
        await future

    def is_fence_durable(self, ledger_id: int) -> bool:
        """Return whether a fencing read can be answered at once."""
        state = self.ledgers.get(ledger_id)
        return ledger_id in self.ledgers.deleted if state is None else state.fence.is_durable

    def put_into_limbo(self, ledger_id: int, *, is_fenced: bool) -> None:
        """Put a ledger into limbo (I6) during the start. Durable with the next checkpoint."""
        if ledger_id in self.ledgers.deleted:
            return
        state = self.ledgers.make(ledger_id)
        state.is_limbo = True
        if is_fenced and state.fence.is_clear:
            state.fence.restore()
        self.ledgers.changed.add(ledger_id)

    def doubt(self, last_ledger_id: int) -> None:
        """Treat every unknown ledger up to this id as fenced and in limbo, durably (I4, I6).

        Raises:
            BookieStorageError: it could not be made durable.
        """
        for directory in self.directories:
            directory.commit(IndexBatch(doubtful_to=last_ledger_id))
        self.ledgers.doubtful_to = last_ledger_id

    # -- reads

    def cached(self, ledger_id: int, entry_id: int) -> bytes | memoryview | None:
        """Return the entry if a cache holds it, else None."""
        data: bytes | memoryview | None = self.write_cache.get(ledger_id, entry_id)
        if data is None:
            data = self.read_cache.get(ledger_id, entry_id)
        return data

    def negative(self, ledger_id: int) -> Status:
        """Return the status for an entry that is not found (I6)."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            return Status.NO_LEDGER
        if state.is_limbo:
            return Status.UNKNOWN_LEDGER_STATE
        return Status.NO_LEDGER if state.last_entry_id < 0 else Status.NO_ENTRY

    def last_add_confirmed(self, ledger_id: int) -> int:
        """Return the highest LAC known, -1 for none."""
        state = self.ledgers.get(ledger_id)
        return -1 if state is None else state.last_add_confirmed

    def has_ledger(self, ledger_id: int) -> bool:
        """Return whether the ledger is known here; a fence alone counts."""
        return self.ledgers.get(ledger_id) is not None

    def read_disk(self, ledger_id: int, entry_id: int, bytes_wanted: int = 0) -> list[tuple[int, bytes]]:
        """Read the entry and those after it that fit ``bytes_wanted``, each with its id. Blocks.

        The result is empty if the index does not know the entry.

        Raises:
            BookieStorageError, EntryDamagedError: the read failed, and the entry may exist (I6).
        """
        found: list[tuple[int, bytes]] = []
        runs = self.directory_of(ledger_id).read_runs(ledger_id, entry_id, ENTRY_ID_MAX, bytes_wanted, new_memory)
        for sizes, data in runs:
            for size, end in zip(sizes, accumulate(sizes), strict=True):
                found.append((entry_id + len(found), bytes(data[end - size + LENGTH_BYTES : end])))
        return found

    def read_batch_disk(
        self, ledger_id: int, first: int, last: int, bytes_wanted: int, buffer: ReadBuffer
    ) -> list[Records]:
        """Read records (u32 length and entry) of consecutive entries, at least one if the first exists. Blocks.

        Raises:
            BookieStorageError, EntryDamagedError: the read failed, and the first entry may exist (I6).
        """
        return self.directory_of(ledger_id).read_runs(ledger_id, first, last, bytes_wanted, buffer.take)

    def spans_on_disk(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return first and last ids of the stored runs within ``first`` to ``last``. Blocks.

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

    # -- checkpoints

    @property
    def has_changes(self) -> bool:
        return self._checkpoint is not None or self.write_cache.entries > 0 or self.ledgers.has_changes

    def begin_checkpoint(self) -> Checkpoint:
        """Start a checkpoint with the present positions, entries and records; or return the failed one."""
        if self._checkpoint is None:
            positions = tuple(journal.position for journal in self.journals)  # before the swap
            self._note_places()  # after the positions: so all large entries before them have their places
            self.checkpoint_number += 1
            mark = Mark(self.checkpoint_number, positions)
            self._flushed_directories.clear()
            changed, dropped = self.ledgers.take_changed(), self.ledgers.take_dropped()
            self._checkpoint = Checkpoint(mark, self.write_cache.swap(), changed, dropped)
        return self._checkpoint

    async def place_entries(self) -> None:
        """Wait until large entries of the running checkpoint are durable in their journals; note their locations.

        Copy every entry whose location is still unknown after ``PLACES_WAIT_SECONDS_MAX``.
        """
        if not self.config.single_write_bytes:
            return
        await asyncio.wait([journal.caught_up() for journal in self.journals], timeout=PLACES_WAIT_SECONDS_MAX)
        self._note_places()

    def _note_places(self) -> None:
        for journal in self.journals:
            for note in journal.take_notes():
                ledger_id, entry_id, _ = entry_head(note.payload)
                self.write_cache.note_place(ledger_id, entry_id, note)

    def gone_in(self, checkpoint: Checkpoint) -> frozenset[int]:
        """Return the deleted ledgers that the checkpoint concerns. Called right before the flush goes to its thread."""
        ids = {*checkpoint.half.ledgers, *(record.ledger_id for record in checkpoint.ledgers)}
        return checkpoint.dropped.union(ledger_id for ledger_id in ids if ledger_id in self.ledgers.deleted)

    def flush_checkpoint(self, checkpoint: Checkpoint, gone: frozenset[int], *, moves_mark: bool = True) -> int:
        """Write entry logs, indexes, then the mark; return the bytes written to logs. Blocks; on the storage thread.

        Raises:
            BookieStorageError: it failed. Call it again with the same checkpoint.
        """
        written = 0
        place_of = self._place_of
        for number, directory in enumerate(self.directories):
            if number in self._flushed_directories:
                continue
            wanted = [n for n in checkpoint.half.ledgers if place_of(n) == number and n not in gone]
            kept = self._keep(checkpoint.half, wanted, number)
            runs = [run for its_runs in kept.values() for run in its_runs]
            mine = checkpoint.half.sorted(wanted, _entries_of(runs))
            records = [r for r in checkpoint.ledgers if place_of(r.ledger_id) == number and r.ledger_id not in gone]
            deleted = [n for n in gone if place_of(n) == number]  # I4: the mark may pass the record of a fence
            written += directory.flush(mine, records, checkpoint.mark.checkpoint, deleted, runs)
            for path, its_runs in kept.items():
                directory.kept.note(path, its_runs)
            self.bytes_kept += sum([sum(run.sizes) for run in runs])
            self._flushed_directories.add(number)
        if moves_mark:  # last: every directory now holds what the journals hold before the mark (I1)
            self._write_mark(checkpoint.mark)
        return written

    def _keep(self, half: CacheHalf, ledger_ids: Sequence[int], number: int) -> dict[Path, list[EntryRun]]:
        """Decide which entries stay in journal files, and make those logs of a directory. Return runs by file. Blocks.

        Each journal has one directory that keeps its files. None is kept for less than half of what is flushed, since
        the rest of the file would be garbage.
        """
        if not half.places:
            return {}
        directory, kept = self.directories[number], dict[Path, list[EntryRun]]()
        for journal_number, journal in enumerate(self.journals):
            ids = [n for n in ledger_ids if n % len(self.journals) == journal_number]
            if journal_number % len(self.directories) != number or not ids:
                continue
            found = kept_runs(half, ids)
            if sum(sum(run.sizes) for runs in found.values() for run in runs) < KEPT_SHARE_LEAST * half.bytes_of(ids):
                continue
            for file_id, runs in found.items():
                path = used_path(journal.directory, file_id)
                log_id = directory.kept.keep(path)
                if log_id is not None:
                    kept[path] = [replace(run, log_id=log_id) for run in runs]
        return kept

    @property
    def kept_logs(self) -> int:
        """The number of journal files that serve as entry logs."""
        return sum([len(directory.kept) for directory in self.directories])

    def _write_mark(self, mark: Mark) -> None:
        write_mark(self.disk, [directory.path for directory in self.directories], mark)
        self._mark = mark

    def recycle_journals(self, mark: Mark) -> None:
        """Recycle the journal files before a durable mark; files that directories keep are logs from now on. Blocks."""
        for journal, position in zip(self.journals, mark.positions, strict=True):
            done: set[int] = set()
            for directory in self.directories:
                for path in directory.kept.kept_of(journal.directory):
                    file_id = file_id_of(path)
                    if file_id < position.file_id:
                        directory.kept.release(path, journal.end_of(file_id))
                        done.add(file_id)
            journal.recycle(position, done)

    def finish_checkpoint(self) -> None:
        """Note that the running checkpoint is durable, and drop its half of the write cache."""
        assert self._checkpoint is not None, "a checkpoint was begun"
        self.ledgers.deletions_noted(self._checkpoint.dropped)
        self._checkpoint = None
        self.write_cache.flushed()

    def flush_now(self, *, moves_mark: bool) -> None:
        """Run a whole checkpoint. Blocks; for the start and the end, when nothing else runs."""
        checkpoint = self.begin_checkpoint()
        self.flush_checkpoint(checkpoint, self.gone_in(checkpoint), moves_mark=moves_mark)
        self.finish_checkpoint()

    def close(self, *, is_orderly: bool = False) -> None:
        """Stop the journals and close the directories, without a flush; close the rest after a failure. Blocks.

        Args:
            is_orderly: the bookie ended as it should. If everything was flushed, an older release can start then.

        Raises:
            BookieStorageError: the newest entry log got no map, or older releases cannot start. Nothing is lost.
        """
        with contextlib.ExitStack() as closing:
            if is_orderly:
                closing.callback(self._hand_over)
            for directory in self.directories:
                closing.callback(directory.close)
            for journal in self.journals:
                closing.callback(journal.stop)

    def _hand_over(self) -> None:
        """Move the mark to empty journal files of version 1, if it has passed everything that journals hold.

        A crash between leaves both: the journals as they were, and files that hold nothing.
        """
        if self.has_changes or self._mark is None:
            return
        positions = tuple(journal.leave_empty_file() for journal in self.journals)
        self._write_mark(
            replace(self._mark, positions=positions, version=KEPT_VERSION if self.kept_logs else PLAIN_VERSION)
        )


def _entries_of(runs: Iterable[EntryRun]) -> set[tuple[int, int]]:
    return {(run.ledger_id, run.first_entry_id + number) for run in runs for number in range(len(run.sizes))}


def _nothing() -> None:
    pass
