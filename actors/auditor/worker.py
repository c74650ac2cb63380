"""The replication worker: it takes one task at a time, repairs the ledger and deletes the task.

There is one on each node with bookies. A lock keeps workers apart. It only saves work: two workers on one ledger do no
harm, since copies are written before metadata names their bookies, and metadata is changed by compare-and-set
(I9, I10).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.plan import must_be_abandoned, must_be_fenced, places_to_fill, retry_pause_ms
from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.actors.errors import NoSuchLedgerError
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.base.errors import HeliographError
from heliograph.base.interval import until_tick
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.errors import SessionExpiredError
from heliograph.metadata.model import Versioned
from heliograph.metrics.metric import WORK_BOUNDS, Histogram

log = logging.getLogger(__name__)


@dataclass(slots=True)
class WorkerStatistics:
    """Counts since the start."""

    ledgers_repaired: int = 0
    ledgers_recovered: int = 0
    entries_repaired: int = 0
    bytes_repaired: int = 0
    repair_seconds: float = 0.0
    ledgers_damaged: int = 0
    failures: int = 0
    last_failure: str = ""
    repair_duration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Waiting:
    """The state of a task that is not tried for a while. At most one for each task (I15)."""

    until_ms: int
    failures: int = 0
    grace_given: bool = False
    bookies: frozenset[str] | None = None  # those alive when no bookie could take the copies; others may
    said: str = ""  # why the latest attempt did not end the task; it is logged once
    lost_entries: int = 0  # of which the latest attempt found no good copy


class ReplicationWorker:
    """Repairs ledgers that have a task, until cancelled.

    Args:
        alive_bookies: returns the bookies that are alive now.
        draining_bookies: returns the bookies that are to leave the cluster.
        now_ms: a monotonic clock, in milliseconds.
    """

    def __init__(
        self,
        tasks: UnderReplication,
        ledgers: LedgerClient,
        alive_bookies: Callable[[], Awaitable[frozenset[str]]],
        draining_bookies: Callable[[], Awaitable[frozenset[str]]],
        config: AuditorConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._tasks = tasks
        self._ledgers = ledgers
        self._alive_bookies = alive_bookies
        self._draining_bookies = draining_bookies
        self._config = config
        self._now_ms = now_ms
        self._waiting: dict[int, _Waiting] = {}
        self.workers = 1  # in the cluster; pauses grow with them, so that they do not try a hopeless ledger more often
        self._wake = asyncio.Event()
        self._begun_ms: int | None = None  # of the repair under way
        self._ended_seconds = 0.0  # in repairs that ended
        self._statistics = WorkerStatistics()
        self._durations = Histogram(WORK_BOUNDS)  # of attempts to repair a ledger

    def wake(self) -> None:
        """Scan the tasks now: one was marked, or the bookies changed."""
        self._wake.set()

    async def run(self) -> None:
        """Scan the tasks again and again, and do the due ones.

        Raises:
            SessionExpiredError: the session ended, and its locks with it.
        """
        while True:
            self._wake.clear()
            try:
                worked = await self.work_once()
            except SessionExpiredError:
                raise
            except HeliographError as error:
                self._note_failure(error)
                worked = False
            if not worked:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), until_tick(self._config.worker_poll_ms / 1000))

    async def work_once(self) -> bool:
        """Try every task that is due once. Return whether one was finished.

        Raises:
            MetadataError: the store failed; the tasks remain.
        """
        if not await self._tasks.is_enabled():
            return False
        ids = await self._tasks.tasks()
        self._waiting = {ledger_id: self._waiting[ledger_id] for ledger_id in ids if ledger_id in self._waiting}
        assert len(self._waiting) <= len(ids), "only a task that exists waits"  # I15
        random.shuffle(ids)  # workers with different orders seldom meet
        finished = False
        alive = await self._alive_bookies()
        for ledger_id in ids:
            waiting = self._waiting.get(ledger_id)
            if waiting is not None and waiting.bookies not in (None, alive):
                waiting.bookies, waiting.until_ms = None, self._now_ms()
            if waiting is None or waiting.until_ms <= self._now_ms():
                if not await self._tasks.is_enabled():
                    break  # paused meanwhile
                finished = await self._try(ledger_id) or finished
        return finished

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start, and how many tasks wait for their next attempt."""
        copied, running = self._ledgers.statistics(), self._begun_ms
        self._statistics.entries_repaired = copied["entries_repaired"]
        self._statistics.bytes_repaired = copied["bytes_repaired"]
        self._statistics.repair_seconds = self._ended_seconds
        if running is not None:
            self._statistics.repair_seconds += (self._now_ms() - running) / 1000
        self._statistics.ledgers_damaged = sum(waiting.lost_entries > 0 for waiting in self._waiting.values())
        self._statistics.repair_duration = self._durations.told()
        of_time = [each for each in self._waiting.values() if each.bookies is None and not each.lost_entries]
        return {
            **asdict(self._statistics),
            "tasks_waiting": len(self._waiting),
            "ledgers_without_place": sum(each.bookies is not None for each in self._waiting.values()),
            "waiting_seconds": max((0, *(each.until_ms - self._now_ms() for each in of_time))) / 1000,
        }

    async def _try(self, ledger_id: int) -> bool:
        if await self._tasks.task(ledger_id) is None or not await self._tasks.lock(ledger_id):
            return False  # another worker has done it, or does it
        try:
            task = await self._tasks.task(ledger_id)
            if task is None or not await self._attempt(task):
                return False
            self._waiting.pop(ledger_id, None)
            self._statistics.ledgers_repaired += 1
            return await self._tasks.finish(ledger_id, task.version)
        except SessionExpiredError:
            raise
        except HeliographError as error:
            self._note_failure(error)
            self._postpone(ledger_id)
            return False
        finally:
            with contextlib.suppress(HeliographError):
                await self._tasks.release(ledger_id)

    async def _attempt(self, found: Versioned[UnderReplicatedLedger]) -> bool:
        """Try a task once. Return whether nothing is left to do."""
        task = found.record
        try:
            ledger = (await self._ledgers.metadata(task.ledger_id)).record
            missing = frozenset(task.missing_bookies)
            alive = await self._alive_bookies()
            leaving = missing & await self._draining_bookies()
            places = places_to_fill(ledger, leaving | (missing - alive))
            if must_be_fenced(places, self._ledgers.has_replacement(ledger, places)):
                if self._grace_is_running(task.ledger_id):
                    return False
                await self._recover(task.ledger_id)
            else:
                if places:
                    self._waiting_of(task.ledger_id).grace_given = False
                if task.is_abandoned and must_be_abandoned(ledger, missing & alive):
                    await self._recover(task.ledger_id)
            damaged = missing.intersection(task.damaged_bookies) - leaving
            with self._timed():
                outcome = await self._ledgers.repair(
                    task.ledger_id, missing - leaving, away_from=leaving, damaged=damaged
                )
        except NoSuchLedgerError:
            return True
        if not outcome.complete:
            self._postpone(task.ledger_id, alive if places or outcome.needs_bookies else None)
            self._say(task.ledger_id, outcome.reason)
            await self._note_lost(found, outcome.lost_entries)
        return outcome.complete

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        self._begun_ms = self._now_ms()
        try:
            yield
        finally:
            self._ended_seconds += (took := (self._now_ms() - self._begun_ms) / 1000)
            self._durations.observe(took)
            self._begun_ms = None

    async def _note_lost(self, task: Versioned[UnderReplicatedLedger], lost_entries: int) -> None:
        """Log entries without any good copy, if their number has grown. Existing copies are kept."""
        ledger_id = task.record.ledger_id
        self._waiting[ledger_id].lost_entries = lost_entries
        if lost_entries > task.record.lost_entries:
            log.error("ledger %d: no bookie has a good copy of %d entries", ledger_id, lost_entries)
        await self._tasks.note_lost(task, lost_entries)

    async def _recover(self, ledger_id: int) -> None:
        await self._ledgers.recover(ledger_id)
        self._statistics.ledgers_recovered += 1

    def _grace_is_running(self, ledger_id: int) -> bool:
        """Whether the ledger's writer still has time to replace the lost bookie."""
        waiting = self._waiting_of(ledger_id)
        if waiting.grace_given:
            return False
        waiting.grace_given = True
        waiting.until_ms = self._now_ms() + self._config.open_ledger_grace_ms
        return self._config.open_ledger_grace_ms > 0

    def _waiting_of(self, ledger_id: int) -> _Waiting:
        return self._waiting.setdefault(ledger_id, _Waiting(until_ms=self._now_ms()))

    def _say(self, ledger_id: int, reason: str) -> None:
        """Log why a ledger is not repaired completely, once for each reason."""
        waiting = self._waiting_of(ledger_id)
        if waiting.said != reason:
            waiting.said = reason
            log.info("ledger %d is not repaired completely: %s", ledger_id, reason)

    def _postpone(self, ledger_id: int, bookies: frozenset[str] | None = None) -> None:
        """Put the next attempt off. With ``bookies``, those alive now, wait for others, or for the longest pause."""
        waiting = self._waiting_of(ledger_id)
        waiting.failures += 1
        waiting.bookies = bookies
        pause = retry_pause_ms(waiting.failures, self._config.task_retry_ms, self._config.task_retry_ms_max)
        if bookies is not None:
            pause = self._config.task_retry_ms_max
        assert pause <= self._config.task_retry_ms_max, "pauses are bounded"  # I15
        waiting.until_ms = self._now_ms() + pause * self.workers

    def _note_failure(self, error: HeliographError) -> None:
        self._statistics.failures += 1
        self._statistics.last_failure = f"{type(error).__name__}: {error}"
        log.warning("replication worker: %s: %s", type(error).__name__, error)
