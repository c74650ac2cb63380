"""The auditor: while elected, compares what ledgers need with what bookies are there, and marks tasks.

Two auditors may overlap for a moment; since marks are idempotent, that does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from actors.auditor import plan
from actors.auditor.checks import Absences, Finding, finding, ledgers_on, named_bookies
from actors.auditor.config import AuditorConfig
from actors.auditor.ledger_scan import scan_ledgers
from actors.auditor.membership import Membership
from actors.auditor.ports import Ledgers
from actors.auditor.underreplication import UnderReplication
from actors.errors import LedgerError
from heliograph.errors import HeliographError
from metadata.election import Election, Leadership
from metadata.errors import RecordError, SessionExpiredError
from metadata.model import LedgerMetadata
from metadata.store import MetadataStore

log = logging.getLogger(__name__)

AUDIT_PAUSE_SECONDS = 0.1  # at least, between two audits, however often bookies come and go


@dataclass(slots=True)
class AuditorStatistics:
    """Counts since start, and the outcome of the latest audit."""

    is_leader: bool = False
    audits: int = 0
    audits_failed: int = 0
    ledgers: int = 0
    ledgers_unreadable: int = 0  # whose records are damaged or of a newer version: nobody can repair them
    tasks_outstanding: int = 0
    tasks_marked: int = 0
    ledgers_checked: int = 0
    last_failure: str = ""


class Auditor:
    """Audits until cancelled.

    Args:
        on_marked: called when tasks were marked or bookies changed, to wake a worker in the same process.
    """

    def __init__(
        self, store: MetadataStore, ledgers: Ledgers, config: AuditorConfig, on_marked: Callable[[], None]
    ) -> None:
        self.membership = Membership(store, self._on_bookies_changed)
        self.tasks = UnderReplication(store)
        self._store = store
        self._ledgers = ledgers
        self._config = config
        self._on_marked = on_marked
        self._election = Election(store, "auditor", config.identity)
        self._absences = Absences(config.lost_bookie_delay_ms)
        self._checked: set[int] = set()  # closed ledgers compared entry by entry; no more than there are ledgers
        self._compared_to = -1  # ledgers behind this one have their turn first
        self._due = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._statistics = AuditorStatistics()

    async def run(self) -> None:
        """Stand for election, and audit while leading.

        Raises:
            SessionExpiredError: the session ended; a new store and a new auditor are needed.
        """
        await self.membership.start()
        try:
            while True:
                leadership = await self._election.campaign()
                self._statistics.is_leader = True
                await self._lead(leadership)
                self._statistics.is_leader = False
        finally:
            self._statistics.is_leader = False
            self.membership.stop()

    async def audit(self, *, everything: bool = False) -> dict[str, Any]:
        """One audit now.

        Args:
            everything: compare the replicas of all closed ledgers again, not only of those not compared yet.

        Returns:
            ``lost_bookies``, ``absent_bookies``, ``ledgers``, ``marked`` and ``outstanding``.

        Raises:
            MetadataError: the store failed; what was marked stays marked.
        """
        async with self._one_at_a_time:
            if everything:
                self._checked.clear()
            return await self._audit()

    def statistics(self) -> dict[str, Any]:
        """Counts since start, and the outcome of the latest audit."""
        return {**asdict(self._statistics), "absent_bookies": sorted(self._absences.absent)}

    async def _lead(self, leadership: Leadership) -> None:
        while not leadership.lost.is_set():
            self._due.clear()
            try:
                await self.audit()
            except SessionExpiredError:
                raise
            except HeliographError as error:
                self._statistics.audits_failed += 1
                self._statistics.last_failure = f"{type(error).__name__}: {error}"
                log.warning("audit: %s: %s", type(error).__name__, error)
            await asyncio.sleep(AUDIT_PAUSE_SECONDS)
            await self._wait_until_due(leadership)

    async def _wait_until_due(self, leadership: Leadership) -> None:
        pause_ms = self._config.audit_interval_ms
        if (due_ms := self._absences.next_due_ms(now_ms())) is not None:
            pause_ms = min(pause_ms, max(1, due_ms - now_ms()))
        waits = [asyncio.ensure_future(self._due.wait()), asyncio.ensure_future(leadership.lost.wait())]
        try:
            await asyncio.wait(waits, timeout=pause_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _audit(self) -> dict[str, Any]:
        unreadable: list[str] = []

        def on_unreadable(path: str, error: RecordError) -> None:
            log.error("%s cannot be audited, the others are: %s", path, error)
            unreadable.append(path)

        ledgers = await scan_ledgers(self._store, self._config.reads_at_once_max, on_unreadable)
        alive = await self.membership.alive()  # after the ledgers: a bookie may have come and taken one meanwhile
        lost = self._absences.observe(now_ms(), named_bookies(ledgers), alive)
        marked = 0
        holes: list[Finding] = []
        if await self.tasks.is_enabled():
            marked = await self._mark(ledgers_on(ledgers, lost | await self.membership.draining()))
            holes = await self._holes(ledgers, alive)
            marked += await self._mark(holes)
        outstanding = await self.tasks.tasks()
        # A hole that no task tells of is found anew: there may have been no room for its task.
        self._checked.update({hole.ledger_id for hole in holes}.intersection(outstanding))
        self._statistics.audits += 1
        self._statistics.ledgers = len(ledgers)
        self._statistics.ledgers_unreadable = len(unreadable)
        self._statistics.tasks_outstanding = len(outstanding)
        return {
            "lost_bookies": sorted(lost),
            "absent_bookies": sorted(self._absences.absent),
            "ledgers": len(ledgers),
            "marked": marked,
            "outstanding": len(outstanding),
        }

    async def _mark(self, findings: list[Finding]) -> int:
        if not findings:
            return 0
        outstanding = {}
        for ledger_id in await self.tasks.tasks():
            if (task := await self.tasks.task(ledger_id)) is not None:
                outstanding[ledger_id] = frozenset(task.record.missing_bookies)
        marked = 0
        for mark in plan.marks(findings, outstanding, self._config.tasks_outstanding_max):
            marked += await self.tasks.mark(mark.ledger_id, mark.missing_bookies)
        self._statistics.tasks_marked += marked
        if marked:
            log.warning("%d ledgers miss copies and are marked for repair", marked)
            self._on_marked()
        return marked

    async def _holes(self, ledgers: list[LedgerMetadata], alive: frozenset[str]) -> list[Finding]:
        """Entry by entry, for some closed ledgers that were not compared yet: live bookies that lack copies."""
        self._checked &= {ledger.ledger_id for ledger in ledgers}
        due = [
            ledger
            for ledger in ledgers
            if ledger.is_closed and ledger.ledger_id not in self._checked and named_bookies([ledger]) <= alive
        ]
        due.sort(key=lambda ledger: (ledger.ledger_id <= self._compared_to, ledger.ledger_id))
        findings = []
        for ledger in due[: self._config.ledgers_checked_per_audit_max]:
            self._compared_to = ledger.ledger_id  # whatever comes of it, others go first next time
            try:
                lacking = await self._ledgers.check(ledger.ledger_id)
            except LedgerError as error:  # unclear now (a bookie is slow, the ledger was deleted): next audit
                log.info("ledger %d cannot be compared now: %s", ledger.ledger_id, error)
                continue
            self._statistics.ledgers_checked += 1
            if lacking:
                findings.append(finding(ledger, lacking))
            else:
                self._checked.add(ledger.ledger_id)
        return findings

    def _on_bookies_changed(self) -> None:
        self._due.set()
        self._on_marked()


def now_ms() -> int:
    """A monotonic clock."""
    return time.monotonic_ns() // 1_000_000
