"""After a crash: what the journals hold behind the mark goes back into the write cache, then everything is flushed.

The rows of the crash table (docs/formats-bookie.md, "After a crash") and what happens here:
- a file made ready but not used, or torn in its first batch: holds nothing;
- a torn last batch: was never acknowledged, none of it counts;
- damage before the valid end, a file that does not go on where the one before ended, a missing file: refuse (D6);
- old content of a recycled file: has another file's id in each record, so it is not seen at all.

Files are synced before they are believed: after the death of a process alone they may be in memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from actors.bookie.disk import Disk
from actors.bookie.journal import Position
from actors.bookie.journal_files import used_ids, used_path
from actors.bookie.journal_format import JournalBatch, JournalRecord, Kind, decode_fence, decode_lac, read_file_batches
from actors.bookie.storage import Storage
from actors.errors import EntryDamagedError, JournalCorruptError
from actors.wire.entry import decode_entry
from actors.wire.messages import Status


@dataclass(slots=True)
class ReplaySummary:
    """What a replay found."""

    files: int = 0
    batches: int = 0
    entries: int = 0
    fences: int = 0
    last_add_confirmed: int = 0
    skipped: int = 0  # entries of ledgers that were deleted


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """Where the next writer of a journal directory starts."""

    next_file_id: int
    next_sequence: int


def replay_journal(
    disk: Disk, directory: Path, start: Position | None, apply: Callable[[JournalRecord], None], summary: ReplaySummary
) -> JournalEnd:
    """Apply every record behind ``start`` (None: all there are), in order.

    Raises:
        JournalCorruptError: damage; records before it were applied.
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
        for batch in _read_file(disk, path, file_id):
            if end == 0:
                if empty is not None:
                    raise JournalCorruptError(f"{empty} at offset 0: damaged, since {path.name} was begun after it")
                _check_goes_on(path, batch, next_sequence)
            next_sequence, end = batch.next_sequence, batch.end
            if start is None or (file_id, batch.offset) >= start:
                summary.batches += 1
                for record in batch.records:
                    apply(record)
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


def _read_file(disk: Disk, path: Path, file_id: int) -> Iterator[JournalBatch]:
    """Complete batches; none for a file that holds nothing."""
    file = disk.open(path)
    try:
        file.sync()
        _, batches = read_file_batches(file.read_at(0, file.size()), file_id, str(path))
    finally:
        file.close()
    return batches


def _check_goes_on(path: Path, batch: JournalBatch, expected: int | None) -> None:
    """Raise JournalCorruptError unless the file's first batch goes on where the file before ended."""
    first = batch.next_sequence - len(batch.records) - 1
    if expected is not None and first != expected:
        raise JournalCorruptError(f"{path}: starts with record {first}, the file before ended at {expected}")


class StorageReplay:
    """Puts records into a storage, flushing it when its cache is full."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.summary = ReplaySummary()

    def apply(self, record: JournalRecord) -> None:
        """Do again what the record says; doing it twice does no harm.

        Raises:
            JournalCorruptError: the record is sound, its content is not.
            BookieStorageError: a flush failed.
        """
        if record.kind is Kind.ENTRY:
            self._apply_entry(record)
        elif record.kind is Kind.FENCE:
            self._apply_fence(decode_fence(record.payload))
        elif record.kind is Kind.LAC:
            self._apply_lac(*decode_lac(record.payload))

    def _apply_entry(self, record: JournalRecord) -> None:
        try:
            entry = decode_entry(record.payload)
        except EntryDamagedError as error:
            raise JournalCorruptError(f"record {record.sequence} at offset {record.offset}: {error}") from error
        # An entry is in the journal because it was permitted then: a fence that came later does not undo it (I1).
        status = self._storage.add(
            entry.ledger_id,
            entry.entry_id,
            entry.last_add_confirmed,
            bytes(record.payload),
            is_recovery=True,
            is_replay=True,
        )
        assert status in {Status.OK, Status.FENCED}, "a replayed entry always has room"
        self.summary.entries += status is Status.OK
        self.summary.skipped += status is Status.FENCED
        if self._storage.write_cache.wants_flush:
            self._storage.flush_now(moves_mark=False)

    def _apply_fence(self, ledger_id: int) -> None:
        ledgers = self._storage.ledgers
        if ledger_id not in ledgers.deleted:
            ledgers.make(ledger_id).fence.restore()  # I4: also for a ledger that this bookie never stored
            ledgers.mark_changed(ledger_id)
            self.summary.fences += 1

    def _apply_lac(self, ledger_id: int, last_add_confirmed: int) -> None:
        ledgers = self._storage.ledgers
        if ledger_id not in ledgers.deleted:
            ledgers.make(ledger_id).raise_lac(last_add_confirmed)
            ledgers.mark_changed(ledger_id)
            self.summary.last_add_confirmed += 1
