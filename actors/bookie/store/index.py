"""The index of entries and ledgers: one RocksDB a data directory (docs/formats-bookie.md, "Index").

A row names a run of consecutive entries, so the index is small and a flush writes few rows. Copies of an entry (a
recovery may add it again) have rows of their own; nothing is overwritten. Every change is one synced batch.

After a failed write RocksDB refuses all further writes, so the next change opens the database again first. Rows that a
failed write left behind do no harm: the entries that they name were synced before.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rocksdict import AccessType, BlockBasedOptions, Cache, DBRecoveryMode, Options, Rdict, WriteBatch, WriteOptions

from heliograph.actors.bookie.store.entry_log import KEPT_ID_LEAST, RUN_ENTRIES_MAX, EntryRun
from heliograph.actors.errors import BookieStorageError

log = logging.getLogger(__name__)
_RUN_KEY = struct.Struct(">cQQIQ")  # b"E", ledger id, first entry id, log id, offset
_LEDGER_KEY = struct.Struct(">cQ")  # b"L", ledger id
_LEDGER_VALUE = struct.Struct(">BB2xqq")  # version, flags, LAC, last entry id
_CHECKPOINT_KEY = b"C"
_CHECKPOINT_VALUE = struct.Struct(">BQ")  # version, number
_DOUBT_KEY = b"D"
_DOUBT_VALUE = struct.Struct(">BQ")  # version, ledger id
_VERSION = 1
_FENCED, _LIMBO, _DELETED = 1, 2, 4
_ID_MAX = (1 << 64) - 1
WRITE_BUFFER_BYTES = 4 << 20
ROWS_OF_RANGE = 64  # of a ledger, from which on they are deleted as a range
WRITE_BUFFERS_MAX = 2  # one takes writes while the other is written out: RocksDB's default


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A ledger on this bookie, without its entries. ``is_deleted`` keeps the fence of a ledger that is gone (I4)."""

    ledger_id: int
    is_fenced: bool = False
    is_limbo: bool = False
    is_deleted: bool = False
    last_add_confirmed: int = -1
    last_entry_id: int = -1


@dataclass
class IndexBatch:
    """Changes that are made together or not at all."""

    checkpoint: int | None = None
    doubtful_to: int | None = None  # ledger id, as LocationIndex.doubtful_to returns it
    runs: list[EntryRun] = field(default_factory=list)
    removed_runs: list[EntryRun] = field(default_factory=list)
    ledgers: list[LedgerRecord] = field(default_factory=list)
    emptied_ledgers: list[int] = field(default_factory=list)  # all their runs are removed


class LocationIndex:
    """The index of one data directory. Safe to use from several threads."""

    def __init__(self, directory: Path, cache_bytes: int, *, read_only: bool = False) -> None:
        """
        Args:
            read_only: do not change stored data. (RocksDB still writes log files into the directory.)

        Raises:
            BookieStorageError: the index is damaged, or in use.
        """
        self._directory = directory
        self._cache_bytes = cache_bytes
        self._has_failed = False
        self._write_options = WriteOptions()
        self._write_options.sync = True
        try:
            self._db = _open(directory, cache_bytes, read_only)
        except Exception as error:  # rocksdict raises bare Exception
            raise self._failure("open", error) from error

    def commit(self, batch: IndexBatch) -> None:
        """Make all changes of the batch durably. Called by one thread at a time.

        Raises:
            BookieStorageError: the write failed. All of the changes may be there after a restart, or none.
        """
        if self._has_failed:
            self._reopen()
        changes = WriteBatch(raw_mode=True)
        for ledger_id in batch.emptied_ledgers:
            self._delete_rows(changes, ledger_id)
        for run in batch.removed_runs:
            changes.delete(_run_key(run.ledger_id, run.first_entry_id, run.log_id, run.offset))
        for run in batch.runs:
            assert 0 < len(run.sizes) <= RUN_ENTRIES_MAX, "a row holds a bounded run"
            key = _run_key(run.ledger_id, run.first_entry_id, run.log_id, run.offset)
            changes.put(key, _run_value(run))
        for ledger in batch.ledgers:
            changes.put(_LEDGER_KEY.pack(b"L", ledger.ledger_id), _ledger_value(ledger))
        if batch.checkpoint is not None:
            changes.put(_CHECKPOINT_KEY, _CHECKPOINT_VALUE.pack(_VERSION, batch.checkpoint))
        if batch.doubtful_to is not None:
            changes.put(_DOUBT_KEY, _DOUBT_VALUE.pack(_VERSION, batch.doubtful_to))
        try:
            self._db.write(changes, self._write_options)
        except Exception as error:  # rocksdict raises bare Exception
            self._has_failed = True
            raise self._failure("write", error) from error

    def _delete_rows(self, changes: Any, ledger_id: int) -> None:
        """Delete all rows of a ledger: one by one if they are few.

        RocksDB sorts all deleted ranges that it has in memory before the read that follows a new one.
        """
        begin, end = _run_key(ledger_id, 0, 0, 0), _run_key(ledger_id + 1, 0, 0, 0)
        with contextlib.suppress(BookieStorageError):  # a range needs no row that can be read
            keys = [key for key, _ in islice(self._rows(begin, _LEDGER_KEY.pack(b"E", ledger_id)), ROWS_OF_RANGE)]
            if len(keys) < ROWS_OF_RANGE:
                for key in keys:
                    changes.delete(key)
                return
        changes.delete_range(begin, end)

    def find(self, ledger_id: int, entry_id: int) -> list[EntryRun]:
        """Return the runs that hold the entry, the newest first.

        Raises:
            BookieStorageError: the index cannot be read, and the entry may exist (I6).
        """
        found: list[EntryRun] = []
        prefix = _LEDGER_KEY.pack(b"E", ledger_id)
        try:
            rows = self._db.iter()
            rows.seek_for_prev(_run_key(ledger_id, entry_id, (1 << 32) - 1, _ID_MAX))
            while rows.valid():
                key = rows.key()
                if not key.startswith(prefix):
                    break
                _, _, first, log_id, _ = _RUN_KEY.unpack(key)
                if first + RUN_ENTRIES_MAX <= entry_id:
                    break
                value = rows.value()
                if entry_id < first + len(value) // _bytes_each(log_id):
                    found.append(_decode_run(key, value))
                rows.prev()
            rows.status()
        except BookieStorageError:
            raise
        except Exception as error:  # rocksdict raises bare Exception
            raise self._failure("read", error) from error
        if len(found) > 1:
            found.sort(key=lambda run: (run.log_id, run.offset), reverse=True)
        return found

    def runs(self, ledger_id: int, first_entry_id: int = 0) -> Iterator[EntryRun]:
        """Yield the runs of a ledger by first entry, from the first that may hold ``first_entry_id``.

        Raises:
            BookieStorageError: the index cannot be read.
        """
        start = max(first_entry_id - RUN_ENTRIES_MAX + 1, 0)
        prefix = _LEDGER_KEY.pack(b"E", ledger_id)
        for key, value in self._rows(_run_key(ledger_id, start, 0, 0), prefix):
            yield _decode_run(key, value)

    def all_runs(self) -> Iterator[EntryRun]:
        """Yield all runs of all ledgers.

        Raises:
            BookieStorageError: the index cannot be read.
        """
        for key, value in self._rows(b"E", b"E"):
            yield _decode_run(key, value)

    def ledgers(self) -> Iterator[LedgerRecord]:
        """Yield all ledger records by id.

        Raises:
            BookieStorageError: the index cannot be read.
        """
        for key, value in self._rows(b"L", b"L"):
            version, flags, last_add_confirmed, last_entry_id = _LEDGER_VALUE.unpack(value)
            self._check_version(version)
            (_, ledger_id) = _LEDGER_KEY.unpack(key)
            yield LedgerRecord(
                ledger_id,
                bool(flags & _FENCED),
                bool(flags & _LIMBO),
                bool(flags & _DELETED),
                last_add_confirmed,
                last_entry_id,
            )

    def checkpoint(self) -> int:
        """Return the number of the newest checkpoint in the index; 0 if there is none.

        Raises:
            BookieStorageError: the index cannot be read.
        """
        return self._number(_CHECKPOINT_KEY, _CHECKPOINT_VALUE)

    def doubtful_to(self) -> int:
        """Return the last ledger that was created before this bookie lost data for good; 0 if it never did.

        Raises:
            BookieStorageError: the index cannot be read.
        """
        return self._number(_DOUBT_KEY, _DOUBT_VALUE)

    def close(self) -> None:
        """Close the files. Idempotent. Nothing is lost: every change was synced when it was made."""
        try:
            self._db.close()
        except Exception as error:  # rocksdict raises bare Exception; a damaged index fails here too
            log.error("%s", self._failure("close", error))

    def _reopen(self) -> None:
        self.close()
        try:
            self._db = _open(self._directory, self._cache_bytes, False)
        except Exception as error:  # rocksdict raises bare Exception; reads fail too until this succeeds
            raise self._failure("open", error) from error
        self._has_failed = False
        log.warning("the index %s was opened again after a failed write", self._directory)

    def _rows(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            rows = self._db.iter()
            rows.seek(start)
            while rows.valid():
                key = rows.key()
                if not key.startswith(prefix):
                    break
                yield key, rows.value()
                rows.next()
            rows.status()
        except BookieStorageError:
            raise
        except Exception as error:  # rocksdict raises bare Exception
            raise self._failure("read", error) from error

    def _number(self, key: bytes, layout: struct.Struct) -> int:
        try:
            value = self._db.get(key)
        except Exception as error:  # rocksdict raises bare Exception
            raise self._failure("read", error) from error
        if value is None:
            return 0
        version, number = layout.unpack(value)
        self._check_version(version)
        return int(number)

    def _check_version(self, version: int) -> None:
        if version != _VERSION:
            raise BookieStorageError(f"{self._directory}: index format {version}, this program reads {_VERSION}")

    def _failure(self, verb: str, error: Exception) -> BookieStorageError:
        return BookieStorageError(f"cannot {verb} the index {self._directory}: {error}")


def merge_runs(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Merge spans (first, last) of ids that overlap or touch; return them ascending."""
    merged: list[list[int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged


def _open(directory: Path, cache_bytes: int, read_only: bool) -> Any:
    options = Options(raw_mode=True)
    options.create_if_missing(not read_only)
    # A flipped bit in the write-ahead log must stop the bookie instead of cutting the log there. A log that was cut at
    # its end shows in the checkpoint number.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(128)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(cache_bytes))
    blocks.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(blocks)
    if read_only:
        return Rdict(str(directory), options, access_type=AccessType.read_only())
    return Rdict(str(directory), options)


def _run_key(ledger_id: int, first_entry_id: int, log_id: int, offset: int) -> bytes:
    return _RUN_KEY.pack(b"E", ledger_id, first_entry_id, log_id, offset)


def _bytes_each(log_id: int) -> int:
    """Return the bytes of a row's value for each entry: of its size, and in a kept journal file of its gap, too."""
    return 4 if log_id < KEPT_ID_LEAST else 8


def _decode_run(key: bytes, value: bytes) -> EntryRun:
    _, ledger_id, first_entry_id, log_id, offset = _RUN_KEY.unpack(key)
    numbers = struct.unpack(f">{len(value) // 4}I", value)
    if log_id < KEPT_ID_LEAST:
        return EntryRun(ledger_id, first_entry_id, log_id, offset, numbers)
    return EntryRun(ledger_id, first_entry_id, log_id, offset, numbers[1::2], numbers[::2])


def _run_value(run: EntryRun) -> bytes:
    """Encode the sizes; in a kept journal file each behind the gap before its record."""
    numbers = (
        [number for pair in zip(run.gaps, run.sizes, strict=True) for number in pair] if run.is_kept else run.sizes
    )
    return struct.pack(f">{len(numbers)}I", *numbers)


def _ledger_value(ledger: LedgerRecord) -> bytes:
    flags = _FENCED * ledger.is_fenced | _LIMBO * ledger.is_limbo | _DELETED * ledger.is_deleted
    return _LEDGER_VALUE.pack(_VERSION, flags, ledger.last_add_confirmed, ledger.last_entry_id)
