"""Replay after a crash: the journal records after the mark go back into the write cache, then everything is flushed.

How the rows of the crash table (docs/formats-bookie.md, "After a crash") are handled:
- a file that was made ready and not used, or torn in its first batch: it holds nothing;
- a file without a header of its own: it was made ready by an older release, or, behind a newer mark, it is damaged;
- a torn last batch: it was never acknowledged, and none of it counts;
- damage before the valid end, a file that does not continue the one before, a missing file: the start is refused;
- old content of a recycled file: its records carry the tag of another use and are ignored (I19).

Files are synced before they are read: if only the process died, their content may be in memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from heliograph.actors.bookie.disk.disk import Disk
from heliograph.actors.bookie.journal.files import used_ids, used_path
from heliograph.actors.bookie.journal.format import Kind, decode_fence, decode_lac
from heliograph.actors.bookie.journal.journal import JournalPosition
from heliograph.actors.bookie.journal.scan import JournalBatch, JournalRecord, scan
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import EntryDamagedError, JournalCorruptError
from heliograph.actors.wire.entry import entry_head


@dataclass(slots=True)
class ReplaySummary:
    """The counts of a replay."""

    files: int = 0
    batches: int = 0
    entries: int = 0
    fences: int = 0
    last_add_confirmed: int = 0
    skipped: int = 0  # entries of ledgers that were deleted


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """Where the next journal of a directory starts."""

    next_file_id: int
    next_sequence: int


def replay_journal(
    disk: Disk,
    directory: Path,
    start: JournalPosition | None,
    apply: Callable[[list[JournalRecord]], None],
    summary: ReplaySummary,
    *,
    has_headers: bool = False,
) -> JournalEnd:
    """Apply the records of every batch after ``start`` (None: of all batches), in order.

    Args:
        has_headers: as the mark says of the files from ``start`` on.

    Raises:
        JournalCorruptError: a file is damaged. The records before the damage were applied.
        BookieStorageError: a file cannot be read.
    """
    ids = used_ids(disk, directory)
    if start is not None:
        if start.file_id not in ids:
            raise JournalCorruptError(f"{directory}: the mark names journal {start.file_id:016x}, which is missing")
        ids = [file_id for file_id in ids if file_id >= start.file_id]
    next_sequence: int | None = None
    empty: Path | None = None
    for file_id in ids:
        path = used_path(directory, file_id)
        end = 0
        for batch in _read_file(disk, path, file_id, has_header=has_headers):
            if end == 0:
                if empty is not None:
                    raise JournalCorruptError(f"{empty} at offset 0: damaged, since {path.name} was begun after it")
                _check_continues(path, batch, next_sequence)
            next_sequence, end = batch.next_sequence, batch.end
            if start is None or (file_id, batch.offset) >= start:
                summary.batches += 1
                apply(batch.records)
        if start is not None and file_id == start.file_id and end < start.offset:
            raise JournalCorruptError(
                f"{path} at offset {end}: damaged, since the mark says it was whole to {start.offset}"
            )
        if end == 0:
            empty = empty or path
        else:
            summary.files += 1
    next_file_id = max([0, *used_ids(disk, directory), start.file_id if start is not None else 0]) + 1
    return JournalEnd(next_file_id, next_sequence or 1)


def _read_file(disk: Disk, path: Path, file_id: int, *, has_header: bool) -> Iterator[JournalBatch]:
    """Yield the complete batches of a file."""
    file = disk.open(path)
    try:
        file.sync()
        yield from scan(file, file_id, has_header=has_header)[1]
    finally:
        file.close()


def _check_continues(path: Path, batch: JournalBatch, expected: int | None) -> None:
    """Raise JournalCorruptError unless the file's first batch continues the file before it."""
    first = batch.next_sequence - len(batch.records) - 1
    if expected is not None and first != expected:
        raise JournalCorruptError(f"{path}: starts with record {first}, the file before ended at {expected}")


class StorageReplay:
    """Puts records into a storage; flushes one half of its cache on a thread while the other one fills."""

    def __init__(self, storage: BookieStorage) -> None:
        self._storage = storage
        self._thread = ThreadPoolExecutor(1, "replay-flush")
        self._flush: Future[int] | None = None
        self.summary = ReplaySummary()

    def apply(self, records: list[JournalRecord]) -> None:
        """Apply records to the storage. Applying a record twice does no harm.

        Raises:
            JournalCorruptError: a record is sound and its content is not.
            BookieStorageError: a flush failed.
        """
        for kind, offset, payload in records:
            try:
                if kind is Kind.ENTRY:
                    self._apply_entry(payload)
                elif kind is Kind.FENCE:
                    self._apply_fence(decode_fence(payload))
                elif kind is Kind.LAC:
                    self._apply_lac(*decode_lac(payload))
            except (EntryDamagedError, JournalCorruptError) as error:
                raise JournalCorruptError(f"a record at offset {offset}: {error}") from error

    def finish(self) -> None:
        """Wait for the running flush. Entries that were not flushed stay in the cache.

        Raises:
            BookieStorageError: the flush failed.
        """
        try:
            self._end_flush()
        finally:
            self._thread.shutdown()

    def _apply_entry(self, payload: memoryview) -> None:
        # The entry's checksum was verified before it was journaled and is verified at each read; the record's is sound.
        ledger_id, entry_id, last_add_confirmed = entry_head(payload)
        if ledger_id < 0 or entry_id < 0:
            raise JournalCorruptError(f"entry {ledger_id}:{entry_id}")
        # The entry was permitted when it was journaled: a later fence does not undo it (I1).
        if not self._storage.restore(ledger_id, entry_id, last_add_confirmed, bytes(payload)):
            self.summary.skipped += 1
            return
        self.summary.entries += 1
        if self._storage.write_cache.is_half_full:
            self._end_flush()
            checkpoint = self._storage.begin_checkpoint()
            gone = self._storage.gone_in(checkpoint)
            self._flush = self._thread.submit(self._storage.flush_checkpoint, checkpoint, gone, moves_mark=False)

    def _end_flush(self) -> None:
        flush, self._flush = self._flush, None
        if flush is not None:
            flush.result()
            self._storage.finish_checkpoint()

    def _apply_fence(self, ledger_id: int) -> None:
        ledgers = self._storage.ledgers
        if ledger_id not in ledgers.deleted:
            ledgers.make(ledger_id).fence.restore()  # I4: also for a ledger that this bookie never stored
            ledgers.changed.add(ledger_id)
            self.summary.fences += 1

    def _apply_lac(self, ledger_id: int, last_add_confirmed: int) -> None:
        ledgers = self._storage.ledgers
        if ledger_id not in ledgers.deleted:
            ledgers.make(ledger_id).raise_lac(last_add_confirmed)
            ledgers.changed.add(ledger_id)
            self.summary.last_add_confirmed += 1
