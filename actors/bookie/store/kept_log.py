"""Journal files that a data directory keeps as entry logs, so that large entries are written once.

A kept file has two names while the journal needs it: ``<16 hex digits>.journal`` in the journal directory, and
``<8 hex digits>.kept`` in the data directory. The second name is durable before a row of the index points to it (I1).
When the mark has passed the file, a map of its ledgers is put behind its last batch, and the first name is removed.
From then on it is an entry log like any other: compaction copies its live entries elsewhere. When no row points to it,
it becomes a spare of a journal, whose blocks are written faster than new ones, or it is removed. Its small entries,
fences and LACs are garbage from the beginning, because the flush copied them.

Links work within one file system. Where the journal is on another disk than the data directory, the first link fails,
and all its entries are copied.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.actors.bookie.disk.disk import Disk
from heliograph.actors.bookie.journal.journal import JournalNote
from heliograph.actors.bookie.store.entry_log import (
    KEPT_ID_LEAST,
    RUN_ENTRIES_MAX,
    EntryRun,
    encode_map,
    log_ids,
    log_path,
)
from heliograph.actors.bookie.store.write_cache import CacheHalf
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError

_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE)  # errors of one link, not of all
_GAP_BYTES_END = 1 << 32  # between two entries of a run, which its row has to hold
LENGTH_BYTES = 4  # size of the u32 before each entry of a record
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenLog:
    """A kept file that the journal still needs. ``usage`` are the bytes of each ledger in it that rows point to."""

    log_id: int
    usage: Counter[int] = field(default_factory=Counter)


def kept_runs(half: CacheHalf, ledger_ids: Iterable[int]) -> dict[int, list[EntryRun]]:
    """Return the runs of the entries that journal files hold, by the id of the journal file, which is their log id.

    Entries of one file that follow one another make a run, whatever lies between them.
    """
    found: dict[int, list[EntryRun]] = {}
    for ledger_id in sorted(ledger_ids):
        row: list[tuple[int, JournalNote]] = []
        for entry_id in sorted(half.ledgers[ledger_id]):
            note = half.place_of(ledger_id, entry_id)
            if note is None:
                continue
            if row and not _follows(row, entry_id, note):
                found.setdefault(row[0][1].file_id, []).append(_run(ledger_id, row))
                row = []
            row.append((entry_id, note))
        if row:
            found.setdefault(row[0][1].file_id, []).append(_run(ledger_id, row))
    return found


def _follows(row: list[tuple[int, JournalNote]], entry_id: int, note: JournalNote) -> bool:
    last_id, last = row[-1]
    return (
        entry_id == last_id + 1
        and note.file_id == last.file_id
        and 0 < note.offset - last.offset < _GAP_BYTES_END
        and len(row) < RUN_ENTRIES_MAX
    )


def _run(ledger_id: int, row: list[tuple[int, JournalNote]]) -> EntryRun:
    """Return the run of entries that are at these places. The end of each record's header stands for the length."""
    sizes = tuple([LENGTH_BYTES + len(note.payload) for _, note in row])
    starts = [note.offset - LENGTH_BYTES for _, note in row]
    gaps = [start - before - size for start, before, size in zip(starts[1:], starts, sizes, strict=False)]
    return EntryRun(ledger_id, row[0][0], row[0][1].file_id, starts[0], sizes, (0, *gaps))


class KeptLogs:
    """The kept journal files of one data directory. Used by the thread that changes the directory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._all = {log_id for log_id in log_ids(disk, directory) if log_id >= KEPT_ID_LEAST}
        self._next_id = max(self._all, default=KEPT_ID_LEAST - 1) + 1
        self._open: dict[Path, _OpenLog] = {}  # by the journal file
        self._journals: list[Callable[[Path], bool]] = []  # each takes a dead file, or refuses it
        self._apart: set[Path] = set()  # journal directories whose files cannot get a name here

    def __len__(self) -> int:
        return len(self._all)

    @property
    def in_use(self) -> set[int]:
        """The logs that a journal still needs: they are neither compacted nor removed."""
        return {found.log_id for found in self._open.values()}

    def keep(self, journal_file: Path) -> int | None:
        """Give a journal file its name here, durably; return its log id, or None if it cannot have one. Idempotent.

        Raises:
            DiskPoisonedError: the sync of the directory failed.
        """
        known = self._open.get(journal_file)
        if known is not None:
            return known.log_id
        if journal_file.parent in self._apart:
            return None
        log_id = self._next_id
        self._next_id += 1  # first: an id is never used twice, even if this fails
        try:
            self._disk.link(journal_file, log_path(self._directory, log_id))
            if self._disk.names_of(journal_file) < 2:  # by which later starts know that it is kept (I1)
                self._disk.remove(log_path(self._directory, log_id))
                raise BookieStorageError(f"the file system of {journal_file} does not count names")
        except DiskPoisonedError:
            raise
        except BookieStorageError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in _PASSING:
                self._apart.add(journal_file.parent)
            log.info("entries of %s are copied to %s: %s", journal_file.parent, self._directory, error)
            return None
        self._all.add(log_id)
        self._disk.sync_directory(self._directory)
        self._open[journal_file] = _OpenLog(log_id)
        return log_id

    def note(self, journal_file: Path, runs: Iterable[EntryRun]) -> None:
        """Note that the index has rows that point into a kept file."""
        usage = self._open[journal_file].usage
        for run in runs:
            usage[run.ledger_id] += sum(run.sizes)

    def release(self, journal_file: Path, end: int | None) -> None:
        """Put the map behind the last batch of a file that its journal no longer needs, and cut the rest off.

        Args:
            end: offset after the last batch; None: it is not known, and the file stays without a map.

        Raises:
            DiskPoisonedError: a sync failed.
        """
        kept = self._open.pop(journal_file)
        if end is None:
            return
        with contextlib.suppress(FileNotFoundError):
            try:
                self._seal(kept, end)
            except DiskPoisonedError:
                raise
            except BookieStorageError as error:  # without its map compaction asks the whole index
                log.warning("the log %s has no map: %s", log_path(self._directory, kept.log_id), error)

    def kept_of(self, journal_directory: Path) -> list[Path]:
        """Return the kept files that the journal of a directory still needs."""
        return [path for path in self._open if path.parent == journal_directory]

    def return_to(self, adopt: Callable[[Path], bool]) -> None:
        """Offer dead files to a journal. ``adopt`` returns whether it has moved the file of a path."""
        self._journals.append(adopt)

    def remove(self, log_id: int) -> None:
        """Remove a file to which no row points from the directory: it becomes a spare of a journal, or it is gone.

        A read that is running may find other content in it from now on.
        """
        path = log_path(self._directory, log_id)
        if not any(adopt(path) for adopt in self._journals):
            self._disk.remove(path)

    def removed(self, log_id: int) -> None:
        """Note that a kept file was removed, and make that durable: marks may say then that there is none."""
        if log_id in self._all:
            self._disk.sync_directory(self._directory)
            self._all.discard(log_id)

    def _seal(self, kept: _OpenLog, end: int) -> None:
        data = encode_map(kept.usage, end)
        file = self._disk.open(log_path(self._directory, kept.log_id))
        try:
            file.write_at(end, data)
            file.truncate(end + len(data))
            file.sync()
        finally:
            file.close()
