"""The auditor. While it leads, it finds ledgers on lost bookies and ledgers with missing copies, and marks tasks.

Two auditors may lead at once for a moment. Marks are idempotent, so this does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from heapq import nsmallest
from typing import Any, TypeVar

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
from heliograph.actors.auditor.membership import Membership
from heliograph.actors.auditor.placements.following import LedgerFollower
from heliograph.actors.auditor.placements.index import LedgerPlacement, PlacementIndex
from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.actors.errors import LedgerError
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.base.clock import monotonic_ms
from heliograph.base.errors import HeliographError
from heliograph.metadata import codec, paths
from heliograph.metadata.bookie_records import LedgerRisks
from heliograph.metadata.errors import NodeExistsError, NoNodeError, RecordError, SessionExpiredError
from heliograph.metadata.recipes.election import Election, Leadership
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)

T = TypeVar("T")

TOUR_RECORDS = 1_000  # that an audit reads again though nothing was missed: 0.2 % of a core at one audit a minute
TOUR_RECORDS_MAX = 50_000  # that an audit reads if something may have been missed, before it judges by what it has
LOOKED_AT_MAX = 10_000  # ledgers whose turn to be compared an audit considers
AUDIT_PAUSE_SECONDS = 0.1  # shortest pause between two audits, however often bookies come and go


@dataclass(slots=True)
class AuditorStatistics:
    """Counts since the start, and the outcome of the latest audit."""

    is_leader: bool = False
    audits: int = 0
    audits_failed: int = 0
    records_read: int = 0
    is_complete: bool = False
    ledgers: int = 0
    ledgers_unreadable: int = 0
    ledgers_last_copy: int = 0
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
        self, store: MetadataStore, ledgers: LedgerClient, config: AuditorConfig, on_marked: Callable[[], None]
    ) -> None:
        self.membership = Membership(store, self._on_bookies_changed)
        self.tasks = UnderReplication(store)
        self._store = store
        self._ledgers = ledgers
        self._config = config
        self._on_marked = on_marked
        self._election = Election(store, "auditor", config.identity)
        self._absences = Absences(config.lost_bookie_delay_ms)
        self._lost: frozenset[str] = frozenset()  # whose ledgers all had tasks after the latest audit
        self._changes = 0  # of the bookies, as the store tells them
        self._changes_audited = -1  # before the latest audit that was completed
        self._follower = LedgerFollower(store, config.reads_at_once_max, self._on_ledger)
        self._weighed = Risks({})  # the risks of all ledgers in the index; with its hosts, those of the latest audit
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
            self._follower.stop()
            self.membership.stop()

    async def audit(self, *, everything: bool = False) -> dict[str, Any]:
        """Audit now.

        Args:
            everything: compare the replicas of all closed ledgers again, not only of those not compared yet.

        Returns:
            ``lost_bookies``, ``absent_bookies``, ``ledgers``, ``marked`` and ``outstanding``.

        Raises:
            MetadataError: the store failed; marked ledgers stay marked.
        """
        async with self._one_at_a_time:
            if everything:
                self._follower.index.begin_turn()
            await self._follower.catch_up(tour_records=TOUR_RECORDS)
            return await self._audit()

    @contextlib.asynccontextmanager
    async def placements(self) -> AsyncIterator[PlacementIndex]:
        """Give the placements of all ledgers, of after the call. They stay as they are until they are given back.

        Raises:
            RecordError: the record of a ledger cannot be read, so where its entries are is unknown.
            MetadataError: the store failed.
        """
        async with self._one_at_a_time:
            await self._follower.catch_up()
            if unreadable := self._follower.unreadable:  # I14: a bookie that such a ledger needs would seem empty
                raise RecordError(
                    f"the records of {len(unreadable)} ledgers, such as {min(unreadable)}, are damaged or of a newer "
                    "version: which bookies they need is unknown"
                )
            yield self._follower.index

    async def mark(self, findings: list[Finding]) -> int:
        """Mark tasks for ledgers that lack copies, as far as there is room. Return how many were marked.

        Raises:
            MetadataError: the store failed; marked ledgers stay marked.
        """
        async with self._one_at_a_time:
            return await self._mark(findings)

    async def describe(self, ledger_id: int) -> dict[str, Any]:
        """Return the record of a ledger, and the entries that its bookies hold.

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
            for bookie_id in sorted(named_bookies(ledger))
        }
        bad = {*found.silent, *lacking} | (bookies.keys() - alive)
        return {
            "ledger": {**asdict(ledger), "state": ledger.state.value},
            "segments": segment_views(ledger, bad),
            "bookies": bookies,
            "task": asdict(task.record) if task is not None else None,
        }

    @property
    def is_current(self) -> bool:
        """Whether an audit of all ledgers was completed that began after the latest change of the bookies."""
        return self._changes_audited == self._changes

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start, and the outcome of the latest audit."""
        absent = sorted(self._absences.absent)
        return {**asdict(self._statistics), "absent_bookies": absent, "lost_bookies": sorted(self._lost)}

    async def _lead(self, leadership: Leadership) -> None:
        while not leadership.lost.is_set():
            self._due.clear()
            has_failed = False
            try:
                async with self._one_at_a_time:
                    await self._follower.catch_up(TOUR_RECORDS_MAX, tour_records=TOUR_RECORDS)
                    await self._audit()
            except SessionExpiredError:
                raise
            except HeliographError as error:
                has_failed = True
                self._statistics.audits_failed += 1
                self._statistics.last_failure = f"{type(error).__name__}: {error}"
                log.warning("audit: %s: %s", type(error).__name__, error)
            await asyncio.sleep(AUDIT_PAUSE_SECONDS)
            if self._follower.is_complete or has_failed:
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
        """Judge by the known placements, of all ledgers, or of some during a tour."""
        changes, index = self._changes, self._follower.index
        is_complete = self._follower.is_complete
        unreadable: list[str] = []

        def on_unreadable(path: str, error: RecordError) -> None:
            log.error("%s is left out of the audit: %s", path, error)
            unreadable.append(path)

        # Read after the ledgers: a bookie may have come and got a ledger meanwhile.
        alive = await self.membership.alive()
        await self._weigh(await self.membership.hosts(on_unreadable))
        risks, named = self._weighed, index.named
        vacancies = frozenset(filter(is_vacancy, named))  # nobody comes back to them
        lost = vacancies | self._absences.observe(monotonic_ms(), named - vacancies, alive)
        marked = 0
        holes: list[Finding] = []
        self._lost = frozenset()
        if is_enabled := await self.tasks.is_enabled():
            given_up = lost | await self.membership.draining()
            marked = await self._mark(await self._lacking(given_up) if given_up & named else [])
            holes = await self._holes(alive)
            marked += await self._mark(holes)
        outstanding = await self.tasks.tasks()
        if is_enabled and is_complete and len(outstanding) < self._config.tasks_outstanding_max // 2:  # each had room
            self._lost = lost - vacancies
        # A hole without a task is searched for again: there may have been no room for its task.
        for ledger_id in {hole.ledger_id for hole in holes}.intersection(outstanding):
            index.note_compared(ledger_id)
        if is_complete:
            if self._risks != risks.counts:
                await self._write(LedgerRisks(risks.counts))
            self._changes_audited = changes
        self._statistics.audits += 1
        self._statistics.is_complete = is_complete
        self._statistics.records_read = self._follower.records_read
        self._statistics.ledgers = len(index)
        self._statistics.ledgers_unreadable = len(self._follower.unreadable) + len(unreadable)
        self._statistics.ledgers_last_copy = risks.last_copies
        self._statistics.tasks_outstanding = len(outstanding)
        return {
            "lost_bookies": sorted(lost - vacancies),
            "absent_bookies": sorted(self._absences.absent),
            "ledgers": len(index),
            "marked": marked,
            "outstanding": len(outstanding),
        }

    def _on_ledger(self, before: LedgerPlacement | None, now: LedgerPlacement | None) -> None:
        if before is not None:
            self._weighed.add([before], -1)
        if now is not None:
            self._weighed.add([now])

    async def _weigh(self, hosts: Mapping[str, str]) -> None:
        """Count the risks again of ledgers whose bookies have come, gone or moved to another machine."""
        before, now = self._weighed, Risks(hosts)
        moved = {name for name in {*before.hosts, *hosts} if before.hosts.get(name) != hosts.get(name)}
        if not moved:
            return
        self._weighed = Risks({})  # where no bookie is alive there are no risks: right, if what follows is cancelled
        async for some in in_steps(self._follower.index.on(moved)):
            before.add(some, -1)
            now.add(some)
        now.take_over(before)
        self._weighed = now

    async def _lacking(self, given_up: frozenset[str]) -> list[Finding]:
        """Return the most urgent findings of ledgers on these bookies that no task covers."""
        outstanding, room = await self._outstanding(), self._config.tasks_outstanding_max
        found: list[Finding] = []
        async for some in in_steps(self._follower.index.on(given_up)):
            new = ledgers_on(some, given_up)
            found += [one for one in new if not outstanding.get(one.ledger_id, frozenset()) >= {*one.missing_bookies}]
            if len(found) > room + len(some):
                found = nsmallest(room, found, key=plan.urgency)
        return found

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
        marked = 0
        for mark in plan.marks(findings, await self._outstanding(), self._config.tasks_outstanding_max):
            marked += await self.tasks.mark(mark.ledger_id, mark.missing_bookies)
        self._statistics.tasks_marked += marked
        if marked:
            log.warning("%d ledgers lack copies and are marked for repair", marked)
            self._on_marked()
        return marked

    async def _outstanding(self) -> dict[int, frozenset[str]]:
        """Return the bookies that each task names."""
        found = {}
        for ledger_id in await self.tasks.tasks():
            if (task := await self.tasks.task(ledger_id)) is not None:
                found[ledger_id] = frozenset(task.record.missing_bookies)
        return found

    async def _holes(self, alive: frozenset[str]) -> list[Finding]:
        """Compare some closed ledgers, not compared yet, entry by entry. Return the ledgers that lack copies."""
        index, due, looked_at = self._follower.index, list[LedgerPlacement](), self._compared_to
        goes_on_at: int | None = None
        for count, ledger in enumerate(index.uncompared(self._compared_to)):
            if len(due) == self._config.ledgers_checked_per_audit_max:
                break
            if count == LOOKED_AT_MAX:
                goes_on_at = looked_at  # though bookies of the latest are away
                break
            looked_at = ledger.ledger_id
            if ledger.bookies <= alive:
                due.append(ledger)
            if count % 1_000 == 999:
                await asyncio.sleep(0)
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
                index.note_compared(ledger.ledger_id)
        if goes_on_at is not None:
            self._compared_to = goes_on_at
        return findings

    def _on_bookies_changed(self) -> None:
        self._changes += 1
        self._due.set()
        self._on_marked()


async def in_steps(parts: Iterable[T]) -> AsyncIterator[T]:
    """Yield parts, and let the event loop turn after each of them."""
    for part in parts:
        yield part
        await asyncio.sleep(0)
