"""An auditor with its worker, on an in-memory store and fake ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import replace
from typing import Any

from typing_extensions import override

from heliograph.actors.auditor.auditor import Auditor
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.worker import ReplicationWorker
from heliograph.actors.errors import LedgerRecoveryError, NoSuchLedgerError, QuorumLostError
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.actors.ledger.effects import CheckFinished, RepairFinished
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.codec import encode
from heliograph.metadata.model import (
    BookieRegistration,
    LedgerMetadata,
    LedgerState,
    Segment,
    Versioned,
)
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore


class FakeLedgers(LedgerClient):
    """Ledgers kept in metadata whose repair replaces a missing bookie by the first spare one."""

    def __init__(self, store: MetadataStore, spares: list[str]) -> None:
        self.store = store
        self.spares = spares
        self.records: dict[int, LedgerMetadata] = {}
        self.holes: dict[int, set[str]] = {}
        self.recovered: list[int] = []
        self.silent: set[int] = set()  # ledgers that cannot be compared
        self.hopeless: set[int] = set()  # ledgers that cannot be repaired
        self.failures = 0
        self.may_be_open = False  # repair takes open ledgers too
        self.lost_entries = 0  # of ledgers that cannot be repaired
        self.damaged: list[str] = []  # bookies whose copies were to be read

    async def add(self, record: LedgerMetadata) -> None:
        self.records[record.ledger_id] = record
        await self.store.create(paths.ledger(record.ledger_id), encode(record), parents=True)

    @override
    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        if ledger_id not in self.records:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return Versioned(self.records[ledger_id], 0)

    @override
    async def recover(self, ledger_id: int) -> LedgerMetadata:
        self.recovered.append(ledger_id)
        return await self._change(replace(self.records[ledger_id], state=LedgerState.CLOSED, last_entry_id=9))

    @override
    def has_replacement(self, ledger: LedgerMetadata, positions: Collection[int]) -> bool:
        return bool(positions) and not set(self.spares).issubset(ledger.last_segment.bookies)

    @override
    async def repair(
        self,
        ledger_id: int,
        missing_bookies: Collection[str],
        *,
        away_from: Collection[str] = (),
        damaged: Collection[str] = (),
    ) -> RepairFinished:
        self.damaged += damaged
        if ledger_id in self.hopeless:
            return RepairFinished(False, 0, 0, "no copy", self.lost_entries)
        if self.failures:
            self.failures -= 1
            raise LedgerRecoveryError("not now")
        record = self.records[ledger_id]
        assert record.is_closed or self.may_be_open
        for bookie in (*missing_bookies, *away_from):
            self.holes.get(ledger_id, set()).discard(bookie)
            record = replace(record, segments=tuple(self._without(segment, bookie) for segment in record.segments))
        await self._change(record)
        return RepairFinished(True, 3, 300)

    @override
    async def holdings(self, ledger_id: int) -> tuple[LedgerMetadata, CheckFinished]:
        record = (await self.metadata(ledger_id)).record
        lacking = tuple((bookie, 2) for bookie in sorted(self.holes.get(ledger_id, ())))
        return record, CheckFinished(lacking, tuple(b for b in record.last_segment.bookies if b == "gone"))

    @override
    def statistics(self) -> dict[str, Any]:
        return {"entries_repaired": 3, "bytes_repaired": 300}

    @override
    async def check(self, ledger_id: int) -> tuple[str, ...]:
        if ledger_id in self.silent:
            raise QuorumLostError("a bookie does not answer")
        return tuple(self.holes.get(ledger_id, ()))

    def _without(self, segment: Segment, lost: str) -> Segment:
        if lost not in segment.bookies or lost.startswith("live"):
            return segment
        spare = next(spare for spare in self.spares if spare not in segment.bookies)
        return replace(segment, bookies=tuple(spare if bookie == lost else bookie for bookie in segment.bookies))

    async def _change(self, record: LedgerMetadata) -> LedgerMetadata:
        self.records[record.ledger_id] = record
        await self.store.set(paths.ledger(record.ledger_id), encode(record))
        return record


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


class World:
    """One store, some bookies, and an auditor with its worker."""

    def __init__(self, config: AuditorConfig) -> None:
        self.server = MemoryServer()
        self.store: MetadataStore = self.server.open_session()
        self.ledgers = FakeLedgers(self.store, spares=["spare1", "spare2"])
        self.auditor = Auditor(self.store, self.ledgers, config, on_marked=lambda: None)
        self.clock = Clock()
        self.worker = ReplicationWorker(
            self.auditor.tasks,
            self.ledgers,
            self.auditor.membership.alive,
            self.auditor.membership.draining,
            config,
            self.clock,
        )

    @classmethod
    async def started(cls, bookies: str, *ledgers: str, config: AuditorConfig | None = None) -> World:
        """Return a world with some bookies, and with closed ledgers on these, numbered from 1."""
        world = cls(config or NOW)
        await world.start(*bookies.split())
        for number, on in enumerate(ledgers, 1):
            await world.ledgers.add(ledger(number, on))
        return world

    async def start(self, *bookies: str) -> None:
        await initialise(self.store)
        for bookie in bookies:
            await self.store.create(
                paths.bookie_available(bookie), encode(BookieRegistration(bookie, "h:1")), ephemeral=True
            )


def ledger(ledger_id: int, bookies: str, state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    last = 9 if state is LedgerState.CLOSED else -1
    return LedgerMetadata(ledger_id, 3, 3, 2, (Segment(0, tuple(bookies.split())),), state=state, last_entry_id=last)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


NOW = AuditorConfig(lost_bookie_delay_ms=0, open_ledger_grace_ms=500)
