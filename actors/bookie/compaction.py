"""Copying what is live out of a sparse entry log, a bounded step at a time on the storage thread.

Each step appends verified records to the newest log, syncs it, and then changes the index in one batch: new rows in,
old rows out. A crash between leaves copies that no row names, which are garbage of the new log. The old log is removed
when no row names it, so an entry that cannot be read (a damaged record) keeps its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from actors.bookie.data_directory import LENGTH_BYTES, DataDirectory
from actors.bookie.entry_log import EntryRun
from actors.bookie.index import IndexBatch
from actors.errors import BookieStorageError, DiskPoisonedError, EntryDamagedError

_log = logging.getLogger(__name__)
_STEP_BYTES = 4 << 20

T = TypeVar("T")


class OnThread(Protocol):
    """Runs a function on the storage thread."""

    def __call__(self, function: Callable[..., T], *arguments: object) -> Awaitable[T]: ...


async def compact_log(
    directory: DataDirectory, log_id: int, ledger_ids: Sequence[int], on_thread: OnThread, bytes_per_second: int
) -> int:
    """Copy the log's live entries of the ledgers elsewhere; returns bytes copied.

    Raises:
        BookieStorageError: the disk failed; the old log is still whole, call again.
    """
    copied = 0
    for ledger_id in ledger_ids:
        runs = await on_thread(_runs_in_log, directory, log_id, ledger_id)
        while runs:
            step, runs = _first_step(runs)
            size = await on_thread(_copy_step, directory, step)
            copied += size
            await asyncio.sleep(size / bytes_per_second)
    return copied


def _runs_in_log(directory: DataDirectory, log_id: int, ledger_id: int) -> list[EntryRun]:
    return [run for run in directory.index.runs(ledger_id) if run.log_id == log_id]


def _first_step(runs: list[EntryRun]) -> tuple[list[EntryRun], list[EntryRun]]:
    size = 0
    for count, run in enumerate(runs, 1):
        size += sum(run.sizes)
        if size >= _STEP_BYTES:
            return runs[:count], runs[count:]
    return runs, []


def _copy_step(directory: DataDirectory, runs: list[EntryRun]) -> int:
    """Copy runs of one ledger, with one sync and one change of the index."""
    batch = IndexBatch()
    entries: dict[int, bytes] = {}
    copied = 0
    for run in sorted(runs, key=lambda run: run.offset):  # of several copies the newest stays
        size = sum(run.sizes)
        try:
            records = directory.reader.read(run, run.first_entry_id, size)
        except DiskPoisonedError:
            raise
        except (EntryDamagedError, BookieStorageError) as error:  # what is left to copy must not wait for this one
            _log.error("compaction leaves an entry that cannot be read where it is: %s", error)
            continue
        if len(records) < len(run.sizes):
            _log.error("compaction leaves entries of ledger %d where they are: one is damaged", run.ledger_id)
            continue
        entries.update((entry_id, record[LENGTH_BYTES:]) for entry_id, record in records)
        batch.removed_runs.append(run)
        copied += size
    if entries:
        batch.runs = directory.append([(runs[0].ledger_id, sorted(entries.items()))])
        directory.commit(batch)
    return copied
