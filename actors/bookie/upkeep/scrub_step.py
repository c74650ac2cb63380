"""One step of a scrub: some rows of the index are read, and the entries found of which no copy is good. It blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from heliograph.actors.bookie.disk.blocks import own_memory
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.entry_log import EntryRun
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError, EntryDamagedError

STEP_BYTES = 512 << 10  # most bytes that one step reads, except for one larger entry
STEP_ROWS = 64  # most rows of the index that one step holds

Place = tuple[int, int, int]  # of a row: first entry id, log id, offset


@dataclass(slots=True)
class StepResult:
    """The findings of one step."""

    place: Place | None  # of the last row that was read; None: the ledger has no further rows
    entries: int = 0
    size: int = 0
    damaged: tuple[int, ...] = ()


def verify_rows(directory: DataDirectory, ledger_id: int, after: Place) -> StepResult:
    """Verify the rows of a ledger that follow ``after``, up to a number of bytes. Blocks."""
    rows = (run for run in directory.index.runs(ledger_id, max(after[0], 0)) if _place(run) > after)
    step, damaged = StepResult(None), []
    for run in islice(rows, STEP_ROWS):
        damaged += _damaged_in(directory, run)
        step.place = _place(run)
        step.entries += len(run.sizes)
        step.size += sum(run.sizes)
        if step.size >= STEP_BYTES:
            break
    step.damaged = tuple(sorted(set(damaged)))
    return step


def _damaged_in(directory: DataDirectory, run: EntryRun) -> list[int]:
    """Return the entries of a row of which no copy of this bookie can be read. Blocks."""
    damaged: list[int] = []
    first, end = run.first_entry_id, run.first_entry_id + len(run.sizes)
    while first < end:
        try:
            pieces = directory.reader.read_into(run, first, STEP_BYTES, own_memory)
            first += sum(len(sizes) for sizes, _ in pieces)
        except DiskPoisonedError:
            raise
        except (EntryDamagedError, BookieStorageError, FileNotFoundError):
            if not _is_readable(directory, run.ledger_id, first):
                damaged.append(first)
            first += 1
    return damaged


def _is_readable(directory: DataDirectory, ledger_id: int, entry_id: int) -> bool:
    """Return whether a read of the entry succeeds by another copy, or the entry is gone."""
    try:
        directory.read(ledger_id, entry_id, entry_id, 1)
    except DiskPoisonedError:
        raise
    except (EntryDamagedError, BookieStorageError):
        return False
    return True


def _place(run: EntryRun) -> Place:
    return run.first_entry_id, run.log_id, run.offset
