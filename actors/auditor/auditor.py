"""The auditor. While it leads, it finds ledgers on lost bookies and ledgers with missing copies, and marks tasks.

Two auditors may lead at once for a moment. Marks are idempotent, so this does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from typing import Any

from heliograph.actors.auditor import plan
from heliograph.actors.auditor.checks import (
    Absences,
    Finding,
    Risks,
    finding,
    ledgers_on,
    named_bookies,
    segment_views,
)
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.ledger_scan import scan_ledgers
from heliograph.actors.auditor.membership import Membership
from heliograph.actors.auditor.ports import RepairLedgersPort
from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.actors.errors import LedgerError
from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.base.clock import monotonic_ms
from heliograph.base.errors import HeliographError
from heliograph.metadata import codec, paths
from heliograph.metadata.bookie_records import LedgerRisks
from heliograph.metadata.errors import NodeExistsError, NoNodeError, RecordError, SessionExpiredError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.recipes.election import Election, Leadership
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)

LEDGERS_AT_ONCE_MAX = 1_000  # that are looked at in one step of the event loop: a few ms  # I24
AUDIT_PAUSE_SECONDS = 0.1  # shortest pause between two audits, however often bookies come and go


@dataclass(slots=True)
class AuditorStatistics:
    """Counts since the start, and the outcome of the latest audit."""

    is_leader: bool = False
    audits: int = 0
    audits_failed: int = 0
    ledgers: int = 0
    ledgers_unreadable: int = 0
    tasks_outstanding: int = 0
    tasks_marked: int = 0
    ledgers_checked: int = 0
    last_failure: str = ""


class Auditor:
    """Audits ledgers until cancelled.

    Args:
        on_marked: called when tasks were marked or bookies changed, to wake the worker of the same process.
    """

    def __init__(
        self, store: MetadataStore, ledgers: RepairLedgersPort, config: AuditorConfig, on_marked: Callable[[], None]
    ) -> None:
        self.membership = Membership(store, self._on_bookies_changed)
        self.tasks = UnderReplication(store)
        self._store = store
        self._ledgers = ledgers
        self._config = config
        self._on_marked = on_marked
        self._election = Election(store, "auditor", config.identity)
        self._absences = Absences(config.lost_bookie_delay_ms)
        self._checked: set[int] = set()  # closed ledgers compared entry by entry; at most as many as there are ledgers
        self._compared_to = -1  # ledgers with greater ids are compared first
        self._risks: dict[str, int] | None = None  # as stored; None: not by this auditor yet
        self._due = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._statistics = AuditorStatistics()

    async def run(self) -> None:
        """Take part in the election, and audit while leading.

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
        """Audit now.

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

    async def mark(self, findings: list[Finding]) -> int:
        """Mark tasks for ledgers that lack copies, as far as there is room. Return how many were marked.

        Raises:
            MetadataError: the store failed; what was marked stays marked.
        """
        async with self._one_at_a_time:
            return await self._mark(findings)

    async def describe(self, ledger_id: int) -> dict[str, Any]:
        """Return what metadata says of a ledger, and what its bookies hold.

        Returns:
            ``ledger`` (the record), ``segments`` with ``first_entry_id``, ``last_entry_id`` (None: open), ``bookies``
            and ``copies_least``; ``bookies`` with ``is_alive`` and ``entries_missing`` (None: no answer) by id; and
            ``task``, the record of the repair task, or None. ``copies_least`` counts no bookie that is silent or lacks
            any entry of the ledger, so it may be less than an entry has.

        Raises:
            NoSuchLedgerError: metadata does not know it.
            MetadataError: the store failed.
        """
        ledger, found = await self._ledgers.holdings(ledger_id)
        alive, task = await self.membership.alive(), await self.tasks.task(ledger_id)
        lacking = dict(found.lacking)
        bookies = {
            bookie_id: {
                "is_alive": bookie_id in alive,
                "entries_missing": None if bookie_id in found.silent else lacking.get(bookie_id, 0),
            }
            for bookie_id in sorted(named_bookies([ledger]))
        }
        bad = {*found.silent, *lacking} | (bookies.keys() - alive)
        return {
            "ledger": {**asdict(ledger), "state": ledger.state.value},
            "segments": segment_views(ledger, bad),
            "bookies": bookies,
            "task": asdict(task.record) if task is not None else None,
        }

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start, and the outcome of the latest audit."""
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
        if (due_ms := self._absences.next_due_ms(monotonic_ms())) is not None:
            pause_ms = min(pause_ms, max(1, due_ms - monotonic_ms()))
        waits = [asyncio.ensure_future(self._due.wait()), asyncio.ensure_future(leadership.lost.wait())]
        try:
            await asyncio.wait(waits, timeout=pause_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _audit(self) -> dict[str, Any]:
        unreadable: list[str] = []

        def on_unreadable(path: str, error: RecordError) -> None:
            log.error("%s is left out of the audit: %s", path, error)
            unreadable.append(path)

        ledgers = await scan_ledgers(self._store, self._config.reads_at_once_max, on_unreadable)
        alive = (
            await self.membership.alive()
        )  # read after the ledgers: a bookie may have come and got a ledger meanwhile
        named: set[str] = set()
        risks = Risks(await self.membership.hosts(on_unreadable))
        async for some in _in_steps(ledgers):
            named |= named_bookies(some)
            risks.add(some)
        vacancies = frozenset(filter(is_vacancy, named))  # nobody comes back to them
        lost = vacancies | self._absences.observe(monotonic_ms(), named - vacancies, alive)
        marked = 0
        holes: list[Finding] = []
        if await self.tasks.is_enabled():
            given_up = lost | await self.membership.draining()
            lacking: list[Finding] = []
            async for some in _in_steps(ledgers):
                lacking += ledgers_on(some, given_up)
            marked = await self._mark(lacking)
            holes = await self._holes(ledgers, alive)
            marked += await self._mark(holes)
        outstanding = await self.tasks.tasks()
        # A hole without a task is searched for again: there may have been no room for its task.
        self._checked.update({hole.ledger_id for hole in holes}.intersection(outstanding))
        if self._risks != dict(risks.counts):
            await self._write(LedgerRisks(dict(risks.counts)))
        self._statistics.audits += 1
        self._statistics.ledgers = len(ledgers)
        self._statistics.ledgers_unreadable = len(unreadable)
        self._statistics.tasks_outstanding = len(outstanding)
        return {
            "lost_bookies": sorted(lost - vacancies),
            "absent_bookies": sorted(self._absences.absent),
            "ledgers": len(ledgers),
            "marked": marked,
            "outstanding": len(outstanding),
        }

    async def _write(self, risks: LedgerRisks) -> None:
        value = codec.encode(risks)
        try:
            await self._store.set(paths.LEDGER_RISKS, value)
        except NoNodeError:
            with contextlib.suppress(NodeExistsError):
                await self._store.create(paths.LEDGER_RISKS, value, parents=True)
        self._risks = dict(risks.machines)

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
            log.warning("%d ledgers lack copies and are marked for repair", marked)
            self._on_marked()
        return marked

    async def _holes(self, ledgers: list[LedgerMetadata], alive: frozenset[str]) -> list[Finding]:
        """Compare some closed ledgers entry by entry that were not compared yet. Return those that lack copies."""
        checked: set[int] = set()
        due: list[LedgerMetadata] = []
        async for some in _in_steps(ledgers):
            checked |= self._checked.intersection(ledger.ledger_id for ledger in some)
            new = [each for each in some if self._is_to_be_compared(each) and named_bookies([each]) <= alive]
            due = nsmallest(self._config.ledgers_checked_per_audit_max, [*due, *new], key=self._turn)
        self._checked = checked
        findings = []
        for ledger in due:
            self._compared_to = ledger.ledger_id  # also if it fails: others are first the next time
            try:
                lacking = await self._ledgers.check(ledger.ledger_id)
            except LedgerError as error:  # a bookie is slow, or the ledger was deleted: left to the next audit
                log.info("ledger %d cannot be compared now: %s", ledger.ledger_id, error)
                continue
            self._statistics.ledgers_checked += 1
            if lacking:
                findings.append(finding(ledger, lacking))
            else:
                self._checked.add(ledger.ledger_id)
        return findings

    def _is_to_be_compared(self, ledger: LedgerMetadata) -> bool:
        return ledger.is_closed and ledger.ledger_id not in self._checked

    def _turn(self, ledger: LedgerMetadata) -> tuple[bool, int]:
        return ledger.ledger_id <= self._compared_to, ledger.ledger_id

    def _on_bookies_changed(self) -> None:
        self._due.set()
        self._on_marked()


async def _in_steps(ledgers: Sequence[LedgerMetadata]) -> AsyncIterator[Sequence[LedgerMetadata]]:
    """Yield ledgers some at a time, and let the event loop turn after each part."""
    for first in range(0, len(ledgers), LEDGERS_AT_ONCE_MAX):
        yield ledgers[first : first + LEDGERS_AT_ONCE_MAX]
        await asyncio.sleep(0)
