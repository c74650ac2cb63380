"""One data directory: its entry logs and its index, which change together, the logs first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from heliograph.actors.bookie.disk.blocks import new_memory
from heliograph.actors.bookie.disk.disk import Disk
from heliograph.actors.bookie.store.entry_log import (
    KEPT_ID_LEAST,
    Entries,
    EntryLogReader,
    EntryLogWriter,
    EntryRun,
    Records,
    log_ids,
    log_path,
    read_map,
)
from heliograph.actors.bookie.store.index import IndexBatch, LedgerRecord, LocationIndex
from heliograph.actors.bookie.store.kept_log import KeptLogs
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError, EntryDamagedError

INDEX_NAME = "index"
LENGTH_BYTES = 4  # size of the u32 before each entry of a record

SortedEntries = Iterable[tuple[int, Entries]]  # ledgers ascending, each with its entries ascending


class DataDirectory:
    """One data directory. ``flush``, ``delete_ledgers`` and compaction run on one thread, reads on any."""

    def __init__(self, disk: Disk, directory: Path, log_bytes: int, index_cache_bytes: int) -> None:
        """
        Raises:
            BookieStorageError: the index is damaged.
        """
        self.path = directory
        self._disk = disk
        self.index = LocationIndex(directory / INDEX_NAME, index_cache_bytes)
        self.reader = EntryLogReader(disk, directory)
        self._live_bytes: Counter[int] | None = None  # by log; counted when first needed
        self._unindexed: tuple[int, list[EntryRun]] | None = None  # a failed checkpoint: its number and its runs
        self.kept = KeptLogs(disk, directory)
        known = [log_id for log_id in log_ids(disk, directory) if log_id < KEPT_ID_LEAST]
        self.writer = EntryLogWriter(disk, directory, log_bytes, known[-1] + 1 if known else 1)

    def flush(
        self,
        entries: SortedEntries,
        ledgers: list[LedgerRecord],
        checkpoint: int,
        deleted: Iterable[int] = (),
        kept: Sequence[EntryRun] = (),
    ) -> int:
        """Store entries and ledger records and delete ledgers; return the bytes written to entry logs.

        The entry logs are written and synced first, then the index in one synced batch with the checkpoint's number.

        Args:
            kept: runs in kept journal files, which are durable; they get rows only.

        Raises:
            BookieStorageError: nothing of it counts. Call again with the same arguments, without ledgers deleted
                meanwhile. Entries that are in entry logs are not written again, so an index that keeps failing does not
                fill the disk.
        """
        gone = sorted(deleted)
        batch = IndexBatch(checkpoint=checkpoint, ledgers=[*ledgers, *_tombstones(gone)], emptied_ledgers=gone)
        if self._unindexed is not None and self._unindexed[0] == checkpoint:
            batch.runs = [run for run in self._unindexed[1] if run.ledger_id not in gone]  # I14
            self._live_bytes = None  # the rows may exist already: count again
        else:
            batch.runs = [*self.append(entries), *kept]
            self._unindexed = checkpoint, batch.runs
        self.commit(batch)
        self._unindexed = None
        return sum(sum(run.sizes) for run in batch.runs if not run.is_kept)

    def commit(self, batch: IndexBatch) -> None:
        """Change the index durably. All runs in the batch must be synced.

        Raises:
            BookieStorageError: the change failed, or its outcome is unknown.
        """
        emptied = Counter[int]()
        if self._live_bytes is not None:
            try:
                emptied = self._bytes_of(batch.emptied_ledgers)
            except BookieStorageError:
                self._live_bytes = None  # rows that cannot be read can be deleted
        try:
            self.index.commit(batch)
        except BookieStorageError:
            self._live_bytes = None  # the change may have been made: count again
            raise
        if self._live_bytes is not None:
            for run in batch.runs:
                self._live_bytes[run.log_id] += sum(run.sizes)
            for run in batch.removed_runs:
                self._live_bytes[run.log_id] -= sum(run.sizes)
            self._live_bytes.subtract(emptied)

    def append(self, entries: SortedEntries) -> list[EntryRun]:
        """Write entries durably to the newest log; return their runs, which the caller puts into the index."""
        runs: list[EntryRun] = []
        try:
            for ledger_id, its_entries in entries:
                runs += self.writer.append(ledger_id, its_entries)
            if runs:
                self.writer.sync()
        except BookieStorageError:
            self.writer.abandon()
            raise
        return runs

    def read(self, ledger_id: int, first: int, last: int, bytes_wanted: int) -> list[tuple[int, bytes]]:
        """Return the records of consecutive entries from ``first`` on, with their ids.

        The result ends at ``last``, before the first missing entry, or at ``bytes_wanted`` bytes, but holds one record
        at least. It is empty if the index does not know ``first``.

        Raises:
            BookieStorageError: a read failed, and ``first`` may exist (I6).
            EntryDamagedError: every copy of ``first`` is damaged (I6).
        """
        records: list[tuple[int, bytes]] = []
        for sizes, data in self.read_runs(ledger_id, first, last, bytes_wanted, new_memory):
            start = 0
            for size in sizes:
                records.append((first + len(records), bytes(data[start : start + size])))
                start += size
        return records

    def read_runs(
        self, ledger_id: int, first: int, last: int, bytes_wanted: int, take: Callable[[int], memoryview]
    ) -> list[Records]:
        """Return the records that ``read`` returns, in memory from ``take``. Raises what ``read`` raises."""
        found: list[Records] = []
        size, entry_id = 0, first
        is_cut = False  # whether the next record is known not to fit: reading it would be for nothing
        while entry_id <= last and not is_cut and (size < bytes_wanted or not found):
            try:
                pieces, is_cut = self._read_run(ledger_id, entry_id, last, bytes_wanted - size, take)
            except (BookieStorageError, EntryDamagedError):
                if found:
                    break
                raise
            if not pieces or (found and size + pieces[0][0][0] > bytes_wanted):
                break
            found += pieces
            size += sum([len(data) for _, data in pieces])
            entry_id += sum([len(sizes) for sizes, _ in pieces])
        return found

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """Remove all runs of the ledgers durably and keep their fences (I4, I14)."""
        gone = sorted(ledger_ids)
        self.commit(IndexBatch(ledgers=_tombstones(gone), emptied_ledgers=gone))

    def empty_ledger(self, record: LedgerRecord) -> None:
        """Remove all runs of a ledger durably and keep its record, which is fenced and in limbo."""
        assert record.is_fenced, "the ledger takes no ordinary adds"  # I4
        assert record.is_limbo, "the ledger is never denied an entry"  # I6
        self.commit(IndexBatch(ledgers=[record], emptied_ledgers=[record.ledger_id]))

    def old_logs(self) -> dict[int, int]:
        """Return the live bytes of each log that is neither being written nor about to be indexed.

        Raises:
            BookieStorageError: the index cannot be read.
        """
        live_bytes, in_use = self._live(), self._logs_in_use()
        return {log_id: live_bytes[log_id] for log_id in log_ids(self._disk, self.path) if log_id not in in_use}

    def ledgers_in(self, log_id: int) -> list[int]:
        """Return the ledgers that have live entries in a log: by its map if that is right, or by the whole index.

        A log without a map may end with bytes of a client. So the index decides whether the map is right (I19).

        Raises:
            BookieStorageError: the index cannot be read.
        """
        try:
            usage = read_map(self._disk, self.path, log_id)
        except DiskPoisonedError:
            raise
        except BookieStorageError:
            usage = None  # perhaps only the map cannot be read
        found: set[int] = set()
        live_bytes = 0
        for ledger_id in usage or ():
            its_bytes = sum([sum(run.sizes) for run in self.index.runs(ledger_id) if run.log_id == log_id])
            if its_bytes:
                found.add(ledger_id)
                live_bytes += its_bytes
        if live_bytes != self._live()[log_id]:
            found = {run.ledger_id for run in self.index.all_runs() if run.log_id == log_id}
        return sorted(found)

    def log_size(self, log_id: int) -> int:
        """Return the size of a log's file in bytes."""
        file = self._disk.open(log_path(self.path, log_id))
        try:
            return file.size()
        finally:
            file.close()

    def remove_log_if_dead(self, log_id: int) -> bool:
        """Remove a log if no row of the index points to it (I14); return whether it was removed."""
        live_bytes = self._live()
        if log_id in self._logs_in_use() or live_bytes[log_id] != 0:
            return False
        del live_bytes[log_id]
        if log_id >= KEPT_ID_LEAST:
            self.kept.remove(log_id)
        else:
            self._disk.remove(log_path(self.path, log_id))
        self.reader.forget(
            log_id
        )  # after that: no read can open it any more, so its space is freed when the running reads end
        self.kept.removed(log_id)
        return True

    def _logs_in_use(self) -> set[int]:
        runs = self._unindexed[1] if self._unindexed is not None else []
        # I1: the rows of these runs are not written yet, and later checkpoints point into the kept ones.
        return {self.writer.log_id, *(run.log_id for run in runs), *self.kept.in_use}

    def _live(self) -> Counter[int]:
        if self._live_bytes is None:
            live_bytes: Counter[int] = Counter()
            for run in self.index.all_runs():
                live_bytes[run.log_id] += sum(run.sizes)
            self._live_bytes = live_bytes
        return self._live_bytes

    def _bytes_of(self, ledger_ids: Iterable[int]) -> Counter[int]:
        """Return the bytes of the ledgers' runs, by log."""
        found: Counter[int] = Counter()
        for ledger_id in ledger_ids:
            for run in self.index.runs(ledger_id):
                found[run.log_id] += sum(run.sizes)
        return found

    def close(self) -> None:
        """Write the map of the log in use and close everything, without a flush.

        Raises:
            BookieStorageError: the log got no map. Everything is closed nevertheless.
        """
        try:
            if not self._disk.is_poisoned:
                self.writer.close()
        finally:
            self.writer.abandon()
            self.reader.close()
            self.index.close()

    def _read_run(
        self, ledger_id: int, entry_id: int, last: int, bytes_wanted: int, take: Callable[[int], memoryview]
    ) -> tuple[list[Records], bool]:
        """Read from the newest sound run that holds the entry; return records, and whether the next is too large."""
        for attempt in (1, 2):
            failure: BookieStorageError | EntryDamagedError | None = None
            try:
                for run in self.index.find(ledger_id, entry_id):
                    try:
                        pieces = self.reader.read_into(run, entry_id, bytes_wanted, take, last)
                        number = entry_id - run.first_entry_id + sum([len(sizes) for sizes, _ in pieces])
                        left = bytes_wanted - sum([len(data) for _, data in pieces])
                        return pieces, number < len(run.sizes) and run.sizes[number] > left
                    except (BookieStorageError, EntryDamagedError) as error:
                        failure = error  # another copy may be sound
            except FileNotFoundError as error:  # a log was removed after the index was read: look again
                if attempt == 2:
                    raise BookieStorageError(
                        f"entry {ledger_id}:{entry_id} is in a log that is gone: {error}"
                    ) from error
                continue
            if failure is not None:
                raise failure
            return [], False
        raise AssertionError("unreachable")


def _tombstones(ledger_ids: Iterable[int]) -> list[LedgerRecord]:
    return [LedgerRecord(ledger_id, is_fenced=True, is_deleted=True) for ledger_id in ledger_ids]  # I4
