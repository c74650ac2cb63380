"""A stand-in for the index of a data directory, which is RocksDB in the product.

A change is made as a whole, is durable when the call returns, and may or may not be there after a call that failed or
that a power cut interrupted. After a failure the table is opened again by the next change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.actors.bookie.store.entry_log import RUN_ENTRIES_MAX, EntryRun
from heliograph.actors.bookie.store.index import IndexBatch, LedgerRecord
from heliograph.actors.errors import BookieStorageError
from tests.simulation.bookie.disk import SimulatedDisk

Key = tuple[int, int, int]  # first entry, log, offset


@dataclass
class Table:
    """The rows."""

    runs: dict[int, dict[Key, EntryRun]] = field(default_factory=dict)  # by ledger
    ledgers: dict[int, LedgerRecord] = field(default_factory=dict)
    checkpoint: int = 0
    doubtful_to: int = 0

    def change(self, batch: IndexBatch) -> None:
        """Make all changes of a batch, in the order in which the product writes them."""
        for ledger_id in batch.emptied_ledgers:
            self.runs.pop(ledger_id, None)
        for run in batch.removed_runs:
            self.runs.get(run.ledger_id, {}).pop(_key(run), None)
        for run in batch.runs:
            assert 0 < len(run.sizes) <= RUN_ENTRIES_MAX, "a row holds a bounded run"
            self.runs.setdefault(run.ledger_id, {})[_key(run)] = run
        for record in batch.ledgers:
            self.ledgers[record.ledger_id] = record
        if batch.checkpoint is not None:
            self.checkpoint = batch.checkpoint
        if batch.doubtful_to is not None:
            self.doubtful_to = batch.doubtful_to


class SimulatedIndex:
    """A stand-in for ``LocationIndex``, on the disk of its process."""

    def __init__(self, disk: SimulatedDisk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory

    @property
    def _table(self) -> Table:
        found = self._disk.platter.tables.setdefault(self._directory, Table())
        assert isinstance(found, Table), "there are no others"
        return found

    def commit(self, batch: IndexBatch) -> None:
        if self._disk.fails_next_index:
            self._disk.fails_next_index = False
            if self._disk.platter.random.random() < 0.5:
                self._change(batch)
            raise BookieStorageError(f"cannot write the index {self._directory}: it failed")
        self._disk.begin("index", lambda: self._change(batch))

    def _change(self, batch: IndexBatch) -> None:
        if self._disk.after_cut is None:  # the table outlives the process: after a power cut nothing may reach it
            self._table.change(batch)

    def find(self, ledger_id: int, entry_id: int) -> list[EntryRun]:
        runs = self._table.runs.get(ledger_id, {}).values()
        found = [run for run in runs if run.first_entry_id <= entry_id < run.first_entry_id + len(run.sizes)]
        return sorted(found, key=lambda run: (run.log_id, run.offset), reverse=True)

    def runs(self, ledger_id: int, first_entry_id: int = 0) -> Iterator[EntryRun]:
        start = max(first_entry_id - RUN_ENTRIES_MAX + 1, 0)
        rows = self._table.runs.get(ledger_id, {})
        yield from [rows[key] for key in sorted(rows) if key[0] >= start]

    def all_runs(self) -> Iterator[EntryRun]:
        for ledger_id in sorted(self._table.runs):
            yield from self.runs(ledger_id)

    def ledgers(self) -> Iterator[LedgerRecord]:
        yield from [self._table.ledgers[ledger_id] for ledger_id in sorted(self._table.ledgers)]

    def checkpoint(self) -> int:
        return self._table.checkpoint

    def doubtful_to(self) -> int:
        return self._table.doubtful_to

    def close(self) -> None:
        """Do nothing."""


def _key(run: EntryRun) -> Key:
    return run.first_entry_id, run.log_id, run.offset
