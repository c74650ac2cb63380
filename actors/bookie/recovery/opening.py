"""Opening a bookie's storage: lock, open, replay, flush. Everything here blocks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import Disk, DiskLock
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.journal import Journal, JournalPorts
from heliograph.actors.bookie.journal.loop_commits import LoopCommits
from heliograph.actors.bookie.recovery.replay import JournalEnd, ReplaySummary, StorageReplay, replay_journal
from heliograph.actors.bookie.store.checkpoint import Mark, newest_mark
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.storage import BookieStorage, Routes
from heliograph.actors.errors import BookieStorageError, JournalCorruptError

LOCK_NAME = "lock"
_WAY_OUT = (
    "Restore the file, or start once with accept_storage_loss: ledgers whose entries are in doubt are repaired from "
    "the other bookies then"
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A storage whose journals are not started yet. ``is_damaged``: a damaged journal was skipped."""

    storage: BookieStorage
    ends: list[JournalEnd]
    summary: ReplaySummary
    is_damaged: bool


def lock_directories(disk: Disk, directories: Sequence[Path]) -> list[DiskLock]:
    """Make and lock each directory.

    Raises:
        DirectoryLockedError: another process uses a directory. No directory stays locked.
        BookieStorageError: a directory cannot be made or written to.
    """
    locks: list[DiskLock] = []
    try:
        for directory in directories:
            disk.make_directory(directory)
            locks.append(disk.lock(directory / LOCK_NAME))
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    return locks


def open_storage(
    disk: Disk,
    config: BookieConfig,
    lost: Sequence[Path] = (),
    *,
    joining: Sequence[Path] = (),
    outdated: Sequence[Path] = (),
    routes: Routes = (),
    accepts_loss: bool = False,
) -> Opened:
    """Open indexes and replay journals into caches. No mark moves.

    Args:
        lost: directories that held data once and are empty now; the caller accepts the loss.
        joining: new, empty directories.
        outdated: directories that are old copies; the caller accepts the loss.
        routes: of the bookie's cookie.
        accepts_loss: a damaged journal is skipped; so it is with ``accept_storage_loss`` of the configuration.

    Raises:
        JournalCorruptError: a journal is damaged, and the configuration does not accept that.
        BookieStorageError: an index is damaged or lost changes, or the disk failed.
    """
    opened: list[DataDirectory] = []
    try:
        for path in config.data_directories:
            directory = DataDirectory(disk, path, config.entry_log_bytes, config.index_cache_bytes)
            opened.append(directory)  # one by one, so that an error closes the ones that are open
        storage = BookieStorage(disk, config, opened, routes)
        mark = newest_mark(disk, config.data_directories)
        if mark is not None:
            check_indexes(mark, [d for d in opened if d.path not in (*lost, *joining, *outdated)])
            storage.checkpoint_number = mark.checkpoint
        storage.checkpoint_number = max([storage.checkpoint_number, *(d.index.checkpoint() for d in opened)])
        replay = StorageReplay(storage)
        try:
            accepts = accepts_loss or config.accept_storage_loss
            ends, is_damaged = _replay(disk, config, lost, joining, mark, replay, accepts_loss=accepts)
        finally:
            replay.finish()
    except BaseException:
        for directory in opened:
            directory.close()
        raise
    return Opened(storage, ends, replay.summary, is_damaged)


def check_indexes(mark: Mark, directories: Sequence[DataDirectory]) -> None:
    """Raise BookieStorageError if an index lost a change that the mark relies on (I6)."""
    for directory in directories:
        number = directory.index.checkpoint()
        if number < mark.checkpoint:
            raise BookieStorageError(
                f"the index in {directory.path} ends at checkpoint {number}, the mark is at {mark.checkpoint}: the "
                "index was damaged or replaced",
                way_out="Restore it, or empty this directory and start with accept_storage_loss",
            )


def start_journals(disk: Disk, opened: Opened, ports: JournalPorts) -> None:
    """Flush the replayed records, move the mark to new journal files, and start the journals' threads.

    After this call the bookie may serve, because it no longer needs the old journal files.
    """
    storage, config = opened.storage, opened.storage.config
    for number, (path, end) in enumerate(zip(config.journal_directories, opened.ends, strict=True)):
        files = JournalFiles(disk, path, config.journal_file_bytes, end.next_file_id)
        storage.journals.append(
            Journal(
                files,
                config.journal_file_bytes,
                end.next_sequence,
                config.journal_seal_ms / 1000,
                LoopCommits(config.journal_loop_sync_us / 1e6),
                storage.may_wait_for_disk,
                ports,
                config.single_write_bytes,
            )
        )
        storage.directories[number % len(storage.directories)].kept.return_to(storage.journals[-1].adopt)
    checkpoint = storage.begin_checkpoint()
    storage.flush_checkpoint(checkpoint, frozenset())
    storage.finish_checkpoint()
    storage.recycle_journals(checkpoint.mark)
    for journal in storage.journals:
        journal.start()


def _replay(
    disk: Disk,
    config: BookieConfig,
    lost: Sequence[Path],
    joining: Sequence[Path],
    mark: Mark | None,
    replay: StorageReplay,
    *,
    accepts_loss: bool,
) -> tuple[list[JournalEnd], bool]:
    ends: list[JournalEnd] = []
    is_damaged = False
    for number, directory in enumerate(config.journal_directories):
        start = mark.positions[number] if mark is not None and number < len(mark.positions) else None
        if directory in joining:  # an unfinished start may have written a mark that counts it
            start = None
        try:
            if directory in lost:
                raise JournalCorruptError(f"{directory} was lost")
            has_headers = mark is not None and mark.has_headers and start is not None
            ends.append(replay_journal(disk, directory, start, replay.apply, replay.summary, has_headers=has_headers))
        except JournalCorruptError as error:
            if not accepts_loss:
                error.way_out = error.way_out or _WAY_OUT
                raise
            log.error("a journal is given up, its ledgers go into limbo: %s", error)
            is_damaged = True
            ends.append(JournalEnd(1 + (start.file_id if start is not None else 0), 1))
    return ends, is_damaged
