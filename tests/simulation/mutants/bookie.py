"""Small sabotages of a bookie's storage: journal, spares, kept files, checkpoints, upkeep, replay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from heliograph.actors.bookie.store.checkpoint import Checkpoint
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.index import IndexBatch
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import BookieStorageError
from tests.simulation.mutants.mutant import BOOKIE, changed, edit

B = "heliograph.actors.bookie."
SCAN, FILES, REPLAY = f"{B}journal.scan", f"{B}journal.files:JournalFiles", f"{B}recovery.replay"
STORAGE, DIRECTORY = f"{B}store.storage:BookieStorage", f"{B}store.data_directory:DataDirectory"
KEPT = f"{B}store.kept_log:KeptLogs"

# -- journal


@edit(
    f"{SCAN}:_read_record",
    "crc32c.crc32c(view[place + CHECKSUM_BYTES : end]) != checksum",
    "False",
    start=224,
    world=BOOKIE,
)
def accept_a_torn_tail_as_whole() -> None:
    """Records of a batch that was torn count, whatever their checksums say (I1, I19)."""


@edit(f"{SCAN}:_refuse_later_batches", "found[0] > number", "False", world=BOOKIE)
def take_damage_for_the_end() -> None:
    """A journal that is damaged in its middle ends there (I6)."""


@edit(f"{SCAN}:_read_record", "found_tag != tag", "False", world=BOOKIE)
def believe_old_records_of_a_spare() -> None:
    """Records of an earlier use of a file count for those of the current one (I19)."""


@edit(f"{FILES}.make_ready", "self._next_id, self._new_tag()", "self._next_id, self._next_id.to_bytes(8)", world=BOOKIE)
def tag_a_file_by_its_number() -> None:
    """Records carry the number of their file, which clients can guess, in place of a secret (I19)."""


@edit(f"{FILES}._begin_again", "file.sync()", "pass", world=BOOKIE)
def begin_a_file_without_a_sync() -> None:
    """The header of a spare that is used again is not synced before the file has its new name (I1, I6)."""


@edit(f"{FILES}.make_ready", "self._disk.sync_directory(self._directory)", "pass", world=BOOKIE)
def name_a_file_without_a_sync() -> None:
    """The name of a journal file is not durable before records are written to it (I1)."""


@edit(
    f"{B}journal.journal:Journal._commit",
    "self._file.write_durably(self._offset, data)",
    "self._file.write_at(self._offset, data)",
    world=BOOKIE,
)
def answer_adds_before_the_journals_sync() -> None:
    """A batch is written, and not synced, before its adds are answered (I1)."""


@edit(f"{STORAGE}.fence", "await future", "pass", world=BOOKIE)
def answer_a_fence_before_its_sync() -> None:
    """A fencing read is answered while the fence is on its way to the journal (I4)."""


# -- checkpoints


@changed(BookieStorage, "flush_checkpoint", world=BOOKIE)
def move_the_mark_before_the_flush(
    real: Callable[..., int],
    self: BookieStorage,
    checkpoint: Checkpoint,
    gone: frozenset[int],
    *,
    moves_mark: bool = True,
) -> int:
    """The mark says that entries are in logs before they are (I1)."""
    if moves_mark:
        self._write_mark(checkpoint.mark)
    return real(self, checkpoint, gone, moves_mark=moves_mark)


@edit(f"{B}store.checkpoint:replace_file", "file.sync()", "pass", world=BOOKIE)
def write_the_mark_without_a_sync() -> None:
    """The mark gets its name before its content is durable (I1, I19)."""


@edit(f"{DIRECTORY}.append", "self.writer.sync()", "pass", world=BOOKIE)
def index_entries_before_their_log_is_synced() -> None:
    """Rows of the index point to entries that a power cut takes away (I1)."""


@edit(f"{STORAGE}.fence", "self.ledgers.changed.add(ledger_id)", "pass", world=BOOKIE)
def leave_fences_out_of_a_checkpoint() -> None:
    """A fence without an add is in no ledger record when the mark passes it (I4)."""


@changed(DataDirectory, "commit", world=BOOKIE)
def forget_the_entries_of_a_failed_index_write(
    real: Callable[..., None], self: DataDirectory, batch: IndexBatch
) -> None:
    """A checkpoint whose index could not be written is done all the same (I1)."""
    with suppress(BookieStorageError):
        real(self, batch)


# -- kept files


@edit(f"{FILES}.recycle_below", "old in kept or self._disk.names_of(path) > 1", "False", world=BOOKIE)
def recycle_a_kept_file() -> None:
    """A journal file that serves as an entry log becomes a spare (I1)."""


@edit(f"{KEPT}.keep", "self._disk.sync_directory(self._directory)", "pass", world=BOOKIE)
def keep_a_file_without_a_durable_name() -> None:
    """The second name of a kept file may be gone after a power cut, and rows point to it (I1)."""


@edit(f"{DIRECTORY}._logs_in_use", "*self.kept.in_use", "*()", start=86, world=BOOKIE)
def collect_logs_that_a_journal_needs() -> None:
    """A kept file without rows of its own is removed while checkpoints still point into it (I1)."""


# -- replay and upkeep


@edit(f"{REPLAY}:StorageReplay.apply", "kind is Kind.FENCE", "False", world=BOOKIE)
def skip_fences_in_a_replay() -> None:
    """A fence that is in the journal only is forgotten by a crash (I4)."""


@edit(f"{REPLAY}:StorageReplay.apply", "kind is Kind.LAC", "False", world=BOOKIE)
def skip_lacs_in_a_replay() -> None:
    """A LAC that is in the journal only is forgotten by a crash (I2)."""


@edit(
    f"{B}recovery.opening:replay_journal",
    "(file_id, batch.offset) >= start",
    "(file_id, batch.offset) > start",
    world=BOOKIE,
)
def begin_a_replay_behind_the_mark() -> None:
    """The batch at the mark is not replayed (I1)."""


@edit(f"{B}store.ledgers:LedgerTable.drop", "self.deleted.add(ledger_id)", "pass", world=BOOKIE)
def forget_the_fence_of_a_deleted_ledger() -> None:
    """A ledger that metadata has deleted is new when it is written again (I4)."""


@edit(
    f"{B}upkeep.compaction:_copy_step",
    "batch.runs = directory.append([(runs[0].ledger_id, sorted(entries.items()))])",
    "pass",
    world=BOOKIE,
)
def remove_a_log_before_its_copies_are_indexed() -> None:
    """Compaction drops the rows of a log whose live entries it has not copied (I1, I6)."""
