"""Small sabotages of a bookie's storage: journal, spares, kept files, checkpoints, upkeep, replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from unittest.mock import patch

from heliograph.actors.bookie.store.checkpoint import Checkpoint
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.index import IndexBatch
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import BookieStorageError
from tests.sabotage import sabotaged
from tests.simulation.mutants.mutant import BOOKIE, mutant

B = "heliograph.actors.bookie."
SCAN, FILES, REPLAY = f"{B}journal.scan", f"{B}journal.files:JournalFiles", f"{B}recovery.replay"
STORAGE, DIRECTORY = f"{B}store.storage:BookieStorage", f"{B}store.data_directory:DataDirectory"
KEPT = f"{B}store.kept_log:KeptLogs"

# -- journal


@mutant(start=224, world=BOOKIE)
def accept_a_torn_tail_as_whole() -> Iterator[None]:
    """Records of a batch that was torn count, whatever their checksums say (I1, I19)."""
    with sabotaged(f"{SCAN}:_read_record", "crc32c.crc32c(view[place + CHECKSUM_BYTES : end]) != checksum", "False"):
        yield


@mutant(world=BOOKIE)
def take_damage_for_the_end() -> Iterator[None]:
    """A journal that is damaged in its middle ends there (I6)."""
    with sabotaged(f"{SCAN}:_refuse_later_batches", "found[0] > number", "False"):
        yield


@mutant(world=BOOKIE)
def believe_old_records_of_a_spare() -> Iterator[None]:
    """Records of an earlier use of a file count for those of the current one (I19)."""
    with sabotaged(f"{SCAN}:_read_record", "found_tag != tag", "False"):
        yield


@mutant(world=BOOKIE)
def tag_a_file_by_its_number() -> Iterator[None]:
    """Records carry the number of their file, which clients can guess, in place of a secret (I19)."""
    with sabotaged(f"{FILES}.make_ready", "self._next_id, self._new_tag()", "self._next_id, self._next_id.to_bytes(8)"):
        yield


@mutant(world=BOOKIE)
def begin_a_file_without_a_sync() -> Iterator[None]:
    """The header of a spare that is used again is not synced before the file has its new name (I1, I6)."""
    with sabotaged(f"{FILES}._begin_again", "file.sync()", "pass"):
        yield


@mutant(world=BOOKIE)
def name_a_file_without_a_sync() -> Iterator[None]:
    """The name of a journal file is not durable before records are written to it (I1)."""
    with sabotaged(f"{FILES}.make_ready", "self._disk.sync_directory(self._directory)", "pass"):
        yield


@mutant(world=BOOKIE)
def answer_adds_before_the_journals_sync() -> Iterator[None]:
    """A batch is written, and not synced, before its adds are answered (I1)."""
    target = f"{B}journal.journal:Journal._commit"
    with sabotaged(target, "self._file.write_durably(self._offset, data)", "self._file.write_at(self._offset, data)"):
        yield


@mutant(world=BOOKIE)
def answer_a_fence_before_its_sync() -> Iterator[None]:
    """A fencing read is answered while the fence is on its way to the journal (I4)."""
    with sabotaged(f"{STORAGE}.fence", "await future", "pass"):
        yield


# -- checkpoints


@mutant(world=BOOKIE)
def move_the_mark_before_the_flush() -> Iterator[None]:
    """The mark says that entries are in logs before they are (I1)."""

    def flush(self: BookieStorage, checkpoint: Checkpoint, gone: frozenset[int], *, moves_mark: bool = True) -> int:
        if moves_mark:
            self._write_mark(checkpoint.mark)
        return real(self, checkpoint, gone, moves_mark=moves_mark)

    real = BookieStorage.flush_checkpoint
    with patch.object(BookieStorage, "flush_checkpoint", flush):
        yield


@mutant(world=BOOKIE)
def write_the_mark_without_a_sync() -> Iterator[None]:
    """The mark gets its name before its content is durable (I1, I19)."""
    with sabotaged(f"{B}store.checkpoint:replace_file", "file.sync()", "pass"):
        yield


@mutant(world=BOOKIE)
def index_entries_before_their_log_is_synced() -> Iterator[None]:
    """Rows of the index point to entries that a power cut takes away (I1)."""
    with sabotaged(f"{DIRECTORY}.append", "self.writer.sync()", "pass"):
        yield


@mutant(world=BOOKIE)
def leave_fences_out_of_a_checkpoint() -> Iterator[None]:
    """A fence without an add is in no ledger record when the mark passes it (I4)."""
    with sabotaged(f"{STORAGE}.fence", "self.ledgers.changed.add(ledger_id)", "pass"):
        yield


@mutant(world=BOOKIE)
def forget_the_entries_of_a_failed_index_write() -> Iterator[None]:
    """A checkpoint whose index could not be written is done all the same (I1)."""

    def commit(self: DataDirectory, batch: IndexBatch) -> None:
        with suppress(BookieStorageError):
            real(self, batch)

    real = DataDirectory.commit
    with patch.object(DataDirectory, "commit", commit):
        yield


# -- kept files


@mutant(world=BOOKIE)
def recycle_a_kept_file() -> Iterator[None]:
    """A journal file that serves as an entry log becomes a spare (I1)."""
    with sabotaged(f"{FILES}.recycle_below", "old in kept or self._disk.names_of(path) > 1", "False"):
        yield


@mutant(world=BOOKIE)
def keep_a_file_without_a_durable_name() -> Iterator[None]:
    """The second name of a kept file may be gone after a power cut, and rows point to it (I1)."""
    with sabotaged(f"{KEPT}.keep", "self._disk.sync_directory(self._directory)", "pass"):
        yield


@mutant(start=86, world=BOOKIE)
def collect_logs_that_a_journal_needs() -> Iterator[None]:
    """A kept file without rows of its own is removed while checkpoints still point into it (I1)."""
    with sabotaged(f"{DIRECTORY}._logs_in_use", "*self.kept.in_use", "*()"):
        yield


# -- replay and upkeep


@mutant(world=BOOKIE)
def skip_fences_in_a_replay() -> Iterator[None]:
    """A fence that is in the journal only is forgotten by a crash (I4)."""
    with sabotaged(f"{REPLAY}:StorageReplay.apply", "kind is Kind.FENCE", "False"):
        yield


@mutant(world=BOOKIE)
def skip_lacs_in_a_replay() -> Iterator[None]:
    """A LAC that is in the journal only is forgotten by a crash (I2)."""
    with sabotaged(f"{REPLAY}:StorageReplay.apply", "kind is Kind.LAC", "False"):
        yield


@mutant(world=BOOKIE)
def begin_a_replay_behind_the_mark() -> Iterator[None]:
    """The batch at the mark is not replayed (I1)."""
    with sabotaged(
        f"{B}recovery.opening:replay_journal", "(file_id, batch.offset) >= start", "(file_id, batch.offset) > start"
    ):
        yield


@mutant(world=BOOKIE)
def forget_the_fence_of_a_deleted_ledger() -> Iterator[None]:
    """A ledger that metadata has deleted is new when it is written again (I4)."""
    with sabotaged(f"{B}store.ledgers:LedgerTable.drop", "self.deleted.add(ledger_id)", "pass"):
        yield


@mutant(world=BOOKIE)
def remove_a_log_before_its_copies_are_indexed() -> Iterator[None]:
    """Compaction drops the rows of a log whose live entries it has not copied (I1, I6)."""
    target = f"{B}upkeep.compaction:_copy_step"
    with sabotaged(target, "batch.runs = directory.append([(runs[0].ledger_id, sorted(entries.items()))])", "pass"):
        yield
