"""The progress of all replication workers, in metadata: each worker keeps an ephemeral record, which readers sum up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from heliograph.metadata import paths
from heliograph.metadata.bookie_records import RepairProgress
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import NodeExistsError, NoNodeError, RecordError
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

REPORT_SECONDS = 2.0  # time between two reports of a worker


class ProgressBoard:
    """The records of the workers, read and written in one session.

    Args:
        identity: the worker whose record ``report`` writes.
    """

    def __init__(self, store: MetadataStore, identity: str) -> None:
        self._store = store
        self._identity = identity
        self._reported: RepairProgress | None = None

    def record(self, statistics: Mapping[str, Any]) -> RepairProgress:
        names = [item.name for item in fields(RepairProgress) if item.name != "worker"]
        return RepairProgress(self._identity, **{name: statistics[name] for name in names})

    async def report(self, statistics: Mapping[str, Any]) -> None:
        """Write the worker's record if it has changed. A record of an earlier session is overwritten, too.

        Raises:
            MetadataError: the outcome is unknown; the next report includes this one.
        """
        record = self.record(statistics)
        path = paths.repair_worker(self._identity)
        if record == self._reported and await self._store.exists(path) is not None:
            return
        try:
            await self._store.set(path, encode(record))
        except NoNodeError:
            try:
                await self._store.create(path, encode(record), ephemeral=True, parents=True)
            except NodeExistsError:
                return  # the next report overwrites it
        self._reported = record

    async def workers(self) -> int:
        """Return the number of workers, at least 1."""
        return max(1, len(await self._names()))

    async def others(self) -> list[RepairProgress]:
        """Return the records of the other workers."""
        found = []
        for name in await self._names():
            if name != self._identity:
                try:
                    found.append((await read(self._store, paths.repair_worker(name), RepairProgress)).record)
                except (NoNodeError, RecordError):
                    continue  # it has ended, or is of another version
        return found

    async def _names(self) -> list[str]:
        try:
            return await self._store.children(paths.REPAIR_WORKERS)
        except NoNodeError:
            return []


def summed(workers: Iterable[RepairProgress]) -> dict[str, Any]:
    """Return the sums over workers, and ``workers`` with the record of each by name.

    Every worker tries each ledger that has lost entries or whose copies no bookie can take, so the largest of their
    counts is the cluster's. ``bytes_per_second`` is the rate at which all of them copy together.
    """
    records = list(workers)
    failures = [record.last_failure for record in records if record.last_failure]
    return {
        "ledgers_repaired": sum(record.ledgers_repaired for record in records),
        "ledgers_damaged": max((record.ledgers_damaged for record in records), default=0),
        "ledgers_without_place": max((record.ledgers_without_place for record in records), default=0),
        "waiting_seconds": max((record.waiting_seconds for record in records), default=0.0),
        "entries_repaired": sum(record.entries_repaired for record in records),
        "bytes_repaired": sum(record.bytes_repaired for record in records),
        "repair_seconds": sum(record.repair_seconds for record in records),
        "last_failure": failures[0] if failures else "",
        "bytes_per_second": sum(
            record.bytes_repaired / record.repair_seconds for record in records if record.repair_seconds
        ),
        "workers": {record.worker: asdict(record) for record in records},
    }
