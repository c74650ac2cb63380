"""Functions that read the directories of a stopped bookie and change nothing.

They take paths, need no configuration, and report what they cannot read. The index is opened read-only through links in
a temporary directory, because RocksDB writes log files even then.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.disk.disk import Disk, ReadOnlyDisk
from heliograph.actors.bookie.journal.files import used_ids, used_path
from heliograph.actors.bookie.journal.format import Kind, decode_file_header
from heliograph.actors.bookie.journal.journal import JournalPosition
from heliograph.actors.bookie.journal.scan import JournalRecord, scan
from heliograph.actors.bookie.recovery.replay import ReplaySummary, replay_journal
from heliograph.actors.bookie.store.checkpoint import Mark, newest_mark
from heliograph.actors.bookie.store.data_directory import INDEX_NAME, LENGTH_BYTES
from heliograph.actors.bookie.store.entry_log import (
    HEADER_BYTES,
    KEPT_ID_LEAST,
    EntryLogReader,
    check_header,
    log_ids,
    log_path,
)
from heliograph.actors.bookie.store.index import LedgerRecord, LocationIndex, merge_runs
from heliograph.actors.errors import BookieStorageError, EntryDamagedError, JournalCorruptError
from heliograph.actors.wire.entry import Entry, decode_entry, entry_head

INDEX_CACHE_BYTES = 8 << 20
ROCKSDICT_CONFIG = "rocksdict-config.json"  # rewritten whenever the index is opened


@dataclass(frozen=True)
class LedgerView:
    """One ledger as the index has it. ``spans`` are the first and last ids of entries in entry logs."""

    ledger_id: int
    is_fenced: bool
    is_limbo: bool
    is_deleted: bool
    last_add_confirmed: int
    last_entry_id: int
    spans: list[list[int]]
    bytes_stored: int


@dataclass(frozen=True)
class JournalView:
    """One journal file. ``damage`` is empty if the file is sound; damage before the mark does no harm."""

    path: str
    is_needed: bool
    batches: int = 0
    entries: int = 0
    fences: int = 0
    end: int = 0
    damage: str = ""


@dataclass
class VerifyReport:
    """The result of a verification. ``damaged`` has a line for each damage, with file and offset."""

    entries_checked: int = 0
    bytes_checked: int = 0
    damaged: list[str] = field(default_factory=list)
    journals: list[JournalView] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.damaged


def list_ledgers(data_directories: Sequence[Path]) -> list[LedgerView]:
    """Return all ledgers in the indexes, by id. Newer entries may be in the journals; ``list_journals`` reads those.

    Raises:
        BookieStorageError: an index is damaged.
    """
    views: list[LedgerView] = []
    for directory in data_directories:
        with _open_index(directory) as index:
            views += [_ledger_view(index, record) for record in index.ledgers()]
    return sorted(views, key=lambda view: view.ledger_id)


def list_journals(journal_directories: Sequence[Path], mark: Mark | None = None) -> list[JournalView]:
    """Return all journal files by directory and id, damaged ones included."""
    disk = ReadOnlyDisk()
    return [
        _journal_view(disk, directory, file_id, mark, is_needed=start is None or file_id >= start.file_id)
        for directory, start in _starts(journal_directories, mark)
        for file_id in used_ids(disk, directory)
    ]


def unflushed_entries(journal_directories: Sequence[Path], mark: Mark | None, ledger_id: int) -> list[Entry]:
    """Return the entries of a ledger after the mark, by id; of several copies the last one.

    Raises:
        JournalCorruptError, BookieStorageError: a journal is damaged or cannot be read.
    """
    found: dict[int, Entry] = {}

    def apply(records: list[JournalRecord]) -> None:
        for record in records:
            if record.kind is Kind.ENTRY and entry_head(record.payload)[0] == ledger_id:
                entry = decode_entry(bytes(record.payload))
                found[entry.entry_id] = entry

    for directory, start in _starts(journal_directories, mark):
        replay_journal(ReadOnlyDisk(), directory, start, apply, ReplaySummary(), has_headers=_has_headers(mark))
    return [found[entry_id] for entry_id in sorted(found)]


def list_logs(data_directory: Path) -> dict[int, dict[int, int]]:
    """Return the entry logs of a directory, each with the bytes of its live entries by ledger, as the index has them.

    Raises:
        BookieStorageError: the index is damaged, or a log has no sound header.
        JournalCorruptError: a log that was a journal file is of an unknown version.
    """
    disk = ReadOnlyDisk()
    found: dict[int, dict[int, int]] = {log_id: {} for log_id in log_ids(disk, data_directory)}
    for log_id in found:
        _check_log(disk, data_directory, log_id)
    with _open_index(data_directory) as index:
        for run in index.all_runs():
            usage = found.get(run.log_id, {})
            usage[run.ledger_id] = usage.get(run.ledger_id, 0) + sum(run.sizes)
    return found


def read_mark(data_directories: Sequence[Path]) -> Mark | None:
    """Return the newest mark.

    Raises:
        BookieStorageError: all marks are damaged.
    """
    return newest_mark(ReadOnlyDisk(), data_directories)


def read_entries(data_directories: Sequence[Path], ledger_id: int, first: int, last: int) -> Iterator[Entry]:
    """Yield the flushed entries of a ledger from ``first`` to ``last``, in order.

    Raises:
        BookieStorageError, EntryDamagedError: an entry exists and cannot be read.
    """
    for directory in data_directories:  # one of them has the ledger; their order need not be known
        reader = EntryLogReader(ReadOnlyDisk(), directory)
        with _open_index(directory) as index:
            done = first - 1
            for run in index.runs(ledger_id, first):
                for entry_id in range(max(run.first_entry_id, done + 1), run.first_entry_id + len(run.sizes)):
                    if entry_id > last:
                        return
                    yield _stored(index, reader, ledger_id, entry_id)
                    done = entry_id


def verify(data_directories: Sequence[Path], journal_directories: Sequence[Path]) -> VerifyReport:
    """Read everything that marks, indexes and journals name; report all damage instead of raising it."""
    report = VerifyReport()
    mark: Mark | None = None
    try:
        mark = read_mark(data_directories)
    except BookieStorageError as error:
        report.damaged.append(str(error))
    report.journals = list_journals(journal_directories, mark)
    for directory, start in _starts(journal_directories, mark):
        try:
            replay_journal(ReadOnlyDisk(), directory, start, _ignore, ReplaySummary(), has_headers=_has_headers(mark))
        except (JournalCorruptError, BookieStorageError) as error:
            report.damaged.append(str(error))
    for directory in data_directories:
        try:
            with _open_index(directory) as index:
                _verify_directory(directory, index, mark, report)
        except BookieStorageError as error:
            report.damaged.append(str(error))
    return report


def _verify_directory(directory: Path, index: LocationIndex, mark: Mark | None, report: VerifyReport) -> None:
    if mark is not None and index.checkpoint() < mark.checkpoint:
        report.damaged.append(
            f"the index in {directory} ends at checkpoint {index.checkpoint()}, the mark is at {mark.checkpoint}"
        )
    reader = EntryLogReader(ReadOnlyDisk(), directory)
    for run in index.all_runs():
        for entry_id, size in enumerate(run.sizes, run.first_entry_id):
            report.entries_checked += 1
            report.bytes_checked += size
            try:
                reader.read(run, entry_id, 1)
            except FileNotFoundError:
                report.damaged.append(f"{log_path(directory, run.log_id)} is missing")
                break
            except (BookieStorageError, EntryDamagedError) as error:
                report.damaged.append(str(error))


def _stored(index: LocationIndex, reader: EntryLogReader, ledger_id: int, entry_id: int) -> Entry:
    """Return the newest sound copy of an entry."""
    failure: Exception | None = None
    for run in index.find(ledger_id, entry_id):
        try:
            ((_, record),) = reader.read(run, entry_id, 1)
        except (BookieStorageError, EntryDamagedError) as error:
            failure = failure or error
        except FileNotFoundError as error:
            failure = failure or BookieStorageError(f"an entry log is missing: {error}")
        else:
            return decode_entry(record[LENGTH_BYTES:])
    assert failure is not None, "the index named a copy"
    raise failure


def _check_log(disk: Disk, directory: Path, log_id: int) -> None:
    path = log_path(directory, log_id)
    file = disk.open(path)
    try:
        if log_id < KEPT_ID_LEAST:
            check_header(file.read_at(0, HEADER_BYTES), log_id, path)
        elif decode_file_header(file.read_at(0, BLOCK_BYTES), str(path)) is None:
            raise BookieStorageError(f"{path} has a damaged header")
    finally:
        file.close()


def _starts(directories: Sequence[Path], mark: Mark | None) -> list[tuple[Path, JournalPosition | None]]:
    positions = mark.positions if mark is not None else ()
    return [(path, positions[number] if number < len(positions) else None) for number, path in enumerate(directories)]


def _has_headers(mark: Mark | None) -> bool:
    return mark is not None and mark.has_headers


def _ignore(records: list[JournalRecord]) -> None:
    pass


@contextlib.contextmanager
def _open_index(directory: Path) -> Iterator[LocationIndex]:
    path = directory / INDEX_NAME
    if not path.is_dir():
        raise BookieStorageError(f"{directory} has no index: it is no data directory of a bookie")
    with tempfile.TemporaryDirectory(prefix="heliograph-inspect-") as name:
        view = Path(name)
        for file in path.iterdir():
            if file.name == ROCKSDICT_CONFIG:
                shutil.copy(file, view)
            elif not file.name.startswith(("LOG", "LOCK")):
                (view / file.name).symlink_to(file.resolve())
        index = LocationIndex(view, INDEX_CACHE_BYTES, read_only=True)
        try:
            yield index
        finally:
            index.close()


def _ledger_view(index: LocationIndex, record: LedgerRecord) -> LedgerView:
    spans: list[tuple[int, int]] = []
    size = 0
    for run in index.runs(record.ledger_id):
        spans.append((run.first_entry_id, run.first_entry_id + len(run.sizes) - 1))
        size += sum(run.sizes)
    return LedgerView(
        record.ledger_id,
        record.is_fenced,
        record.is_limbo,
        record.is_deleted,
        record.last_add_confirmed,
        record.last_entry_id,
        merge_runs(spans),
        size,
    )


def _journal_view(disk: Disk, directory: Path, file_id: int, mark: Mark | None, *, is_needed: bool) -> JournalView:
    path = used_path(directory, file_id)
    kinds: Counter[Kind] = Counter()
    batches = end = 0
    try:
        file = disk.open(path)
        try:
            for batch in scan(file, file_id, has_header=is_needed and _has_headers(mark))[1]:
                kinds.update(record.kind for record in batch.records)
                batches, end = batches + 1, batch.end
        finally:
            file.close()
    except (JournalCorruptError, BookieStorageError, FileNotFoundError) as error:
        return JournalView(str(path), is_needed, damage=str(error))
    return JournalView(str(path), is_needed, batches, kinds[Kind.ENTRY], kinds[Kind.FENCE], end)
