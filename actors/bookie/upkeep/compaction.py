"""Compaction: copying the live entries out of a sparse entry log, in bounded steps on the storage thread.

Each step appends verified records to the newest log, syncs it, and then replaces the old rows of the index by new ones
in one batch. A crash in between leaves copies that no row names, which are garbage of the new log. The old log is
removed when no row names it, so an entry that cannot be read keeps its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from heliograph.actors.bookie.store.data_directory import LENGTH_BYTES, DataDirectory
from heliograph.actors.bookie.store.entry_log import EntryRun
from heliograph.actors.bookie.store.index import IndexBatch
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError, EntryDamagedError

log = logging.getLogger(__name__)
_STEP_BYTES = 4 << 20

T = TypeVar("T")


class OnThread(Protocol):
    """Runs a function on the storage thread."""

    def __call__(self, function: Callable[..., T], *arguments: object) -> Awaitable[T]: ...


async def compact_log(
    directory: DataDirectory, log_id: int, ledger_ids: Sequence[int], on_thread: OnThread, bytes_per_second: int
) -> int:
    """Copy the log's live entries of these ledgers to the newest log; return the bytes copied.

    Raises:
        BookieStorageError: the disk failed. The old log is unchanged; call again.
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
    for run in sorted(runs, key=lambda run: run.offset):  # of several copies the newest is kept
        size = sum(run.sizes)
        try:
            records = directory.reader.read(run, run.first_entry_id, size)
        except DiskPoisonedError:
            raise
        except (EntryDamagedError, BookieStorageError) as error:  # the other entries are copied
            log.error("compaction does not move an entry that cannot be read: %s", error)
            continue
        if len(records) < len(run.sizes):
            log.error("compaction does not move entries of ledger %d: one of them is damaged", run.ledger_id)
            continue
        entries.update((entry_id, record[LENGTH_BYTES:]) for entry_id, record in records)
        batch.removed_runs.append(run)
        copied += size
    if entries:
        batch.runs = directory.append([(runs[0].ledger_id, sorted(entries.items()))])
        directory.commit(batch)
    return copied
