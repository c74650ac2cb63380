"""An auditor, a replication worker, or both in one process. They go on in a new session when one is lost.

A cluster on one node has both in one process. Where bookies are on several nodes, each of those has a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from heliograph.actors.auditor.auditor import Auditor
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.decommission import Decommission
from heliograph.actors.auditor.replacement import DiskReplacement
from heliograph.actors.auditor.worker import ReplicationWorker
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.base.clock import monotonic_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.base.interval import until_tick
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import SessionExpiredError
from heliograph.metadata.recipes.repair_progress import REPORT_SECONDS, ProgressBoard, summed
from heliograph.metadata.store import MetadataStore
from heliograph.metrics.auditor import AUDITOR_METRICS
from heliograph.metrics.history import History, keep_history

log = logging.getLogger(__name__)

RESTART_PAUSE_SECONDS = 0.5
TASKS_SHOWN_MAX = 1_000


class AuditorService:
    """Runs an auditor, a replication worker or both until stopped.

    Args:
        metadata_url: address of the store. A lost session is replaced by a new one.
        on_crash: called when the work ended by a failed assertion or another unexpected error.
    """

    def __init__(self, config: AuditorConfig, metadata_url: str, on_crash: Callable[[], None]) -> None:
        self._on_crash = on_crash
        self._config = config
        self._metadata_url = metadata_url
        self._auditor: Auditor | None = None
        self._worker: ReplicationWorker | None = None  # None also where other processes repair
        self._board: ProgressBoard | None = None
        self._decommission: Decommission | None = None
        self._replacement: DiskReplacement | None = None
        self._task: asyncio.Task[None] | None = None
        self._sessions = 0
        self.history = History()
        self._history_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the first session and start the work. Idempotent.

        Raises:
            MetadataError: the store cannot be reached.
        """
        if self._task is None:
            store = await self._open()
            self._task = asyncio.create_task(self._run(store), name="auditor")
            self._task.add_done_callback(self._ended)
        if self._history_task is None:
            keeping = keep_history(self.history, AUDITOR_METRICS, self._sums)
            self._history_task = asyncio.create_task(keeping, name="history")

    async def stop(self) -> None:
        """Stop the work and end the session. Idempotent."""
        await end_task(self._history_task)
        self._history_task = None
        await end_task(self._task)
        self._task = None

    async def audit(self, *, everything: bool = False) -> dict[str, Any]:
        """Audit now, also if this auditor does not lead.

        Raises:
            ServiceNotReadyError: between two sessions.
        """
        return await self._in_session().audit(everything=everything)

    @property
    def decommission(self) -> Decommission:
        """Return the decommission of bookies, in this session.

        Raises:
            ServiceNotReadyError: between two sessions.
        """
        if self._decommission is None:
            raise ServiceNotReadyError("the auditor is opening a new session: try again")
        return self._decommission

    @property
    def replacement(self) -> DiskReplacement:
        """Return the commands on bookies' disks, in this session.

        Raises:
            ServiceNotReadyError: between two sessions.
        """
        if self._replacement is None:
            raise ServiceNotReadyError("the auditor is opening a new session: try again")
        return self._replacement

    async def describe(self, ledger_id: int) -> dict[str, Any]:
        """Return the record of a ledger and the entries that its bookies hold, as ``Auditor.describe`` does.

        Raises:
            ServiceNotReadyError: between two sessions.
        """
        return await self._in_session().describe(ledger_id)

    async def repair_tasks(self) -> dict[str, Any]:
        """Return the first TASKS_SHOWN_MAX repair tasks, and how many there are (``total``).

        Raises:
            MetadataError: the store failed.
            ServiceNotReadyError: between two sessions.
        """
        tasks = self._in_session().tasks
        ids, in_repair = await tasks.tasks(), await tasks.in_repair()
        shown = [await tasks.task(ledger_id) for ledger_id in ids[:TASKS_SHOWN_MAX]]
        records = [asdict(task.record) | {"in_repair": task.record.ledger_id in in_repair} for task in shown if task]
        return {"total": len(ids), "tasks": records}

    async def repair_status(self) -> dict[str, Any]:
        """Return the progress of repair.

        Returns:
            ``is_paused``, ``are_scrubs_paused``, ``lost_bookie_delay_ms``, ``ledgers_left``, ``ledgers_in_repair``;
            ``absent_bookies``, which ledgers name and nobody finds, and those of them whose ledgers were all given
            tasks, ``lost_bookies``, both by the latest audit of this auditor, and None while that does not
            know the latest change of bookies;
            what ``summed`` returns of the workers that run, each since its session began and a few seconds old; and
            ``seconds_left``, an estimate by the mean time of the ledgers so far and the pauses of those that wait,
            None if there is none.

        Raises:
            MetadataError: the store failed.
            ServiceNotReadyError: between two sessions.
        """
        auditor = self._in_session()
        tasks, found = auditor.tasks, auditor.statistics()
        assert self._board is not None, "it has the session of the auditor"
        own = [self._board.record(self._worker.statistics())] if self._worker is not None else []
        done, left = summed([*own, *await self._board.others()]), len(await tasks.tasks())
        seconds, repaired = done["repair_seconds"] / max(1, len(done["workers"])), done["ledgers_repaired"]
        to_do = max(0, left - done["ledgers_damaged"] - done["ledgers_without_place"])  # the others cannot be finished
        seconds_left = max(to_do * seconds / repaired, done["waiting_seconds"]) if repaired else None
        return {
            "is_paused": not await tasks.is_enabled(),
            "lost_bookie_delay_ms": self._config.lost_bookie_delay_ms,
            "are_scrubs_paused": not await tasks.are_scrubs_enabled(),
            "ledgers_left": left,
            "ledgers_in_repair": len(await tasks.in_repair()),
            **{name: found[name] if auditor.is_current else None for name in ("absent_bookies", "lost_bookies")},
            **done,
            "seconds_left": seconds_left if to_do else 0.0,
        }

    async def pause(self, *, repair: bool | None = None, scrubs: bool | None = None) -> None:
        """Pause (True) or resume (False) repair or the scrubs of bookies in the whole cluster. None: as it is.

        A repair under way ends first; a pause lasts until it is resumed, also over restarts.

        Raises:
            MetadataError: the outcome is unknown; calling again is safe.
            ServiceNotReadyError: between two sessions.
        """
        tasks = self._in_session().tasks
        if repair is not None:
            await tasks.set_enabled(not repair)
            self._wake_worker()
        if scrubs is not None:
            await tasks.set_scrubs_enabled(not scrubs)

    def _in_session(self) -> Auditor:
        if self._auditor is None:
            raise ServiceNotReadyError("the auditor is opening a new session: try again")
        return self._auditor

    def statistics(self) -> dict[str, Any]:
        return {
            "sessions": self._sessions,
            "auditor": self._auditor.statistics() if self._auditor else {},
            "worker": self._worker.statistics() if self._worker else {},
        }

    def _sums(self) -> dict[str, Any]:
        statistics = self.statistics()
        return {**statistics["auditor"], **statistics["worker"]}

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.critical("the auditor crashed", exc_info=task.exception())
            self._task = None
            self._on_crash()

    def _wake_worker(self) -> None:
        if self._worker is not None:
            self._worker.wake()

    async def _open(self) -> MetadataStore:
        return await connect_store(self._metadata_url, session_timeout_ms=self._config.session_timeout_ms)

    async def _run(self, store: MetadataStore | None) -> None:
        while True:
            try:
                store = store or await self._open()
                await self._serve(store)
            except HeliographError as error:
                log.warning("auditor: %s: %s; starting over", type(error).__name__, error)
            finally:
                self._auditor = self._worker = self._board = None
                self._decommission = self._replacement = None
            store = None
            await asyncio.sleep(RESTART_PAUSE_SECONDS)

    async def _serve(self, store: MetadataStore) -> None:
        """Run auditor and worker until the session ends. The end of one ends the other."""
        self._sessions += 1
        closing = contextlib.AsyncExitStack()
        closing.push_async_callback(_close, store)
        try:
            ledgers = await LedgerClient.start(store, self._config.ledgers)
            closing.push_async_callback(ledgers.close)
            auditor = Auditor(store, ledgers, self._config, self._wake_worker)
            bookies, board = auditor.membership, ProgressBoard(store, self._config.identity)
            worker = ReplicationWorker(
                auditor.tasks, ledgers, bookies.alive, bookies.draining, self._config, monotonic_ms
            )
            self._auditor, self._board = auditor, board
            self._worker = worker if self._config.duties != "audit" else None
            self._decommission = Decommission(store, auditor, self._config)
            self._replacement = DiskReplacement(store, auditor)
            async with asyncio.TaskGroup() as group:
                if self._config.duties != "repair":
                    group.create_task(auditor.run(), name="audit")
                if self._config.duties != "audit":
                    group.create_task(worker.run(), name="replicate")
                    group.create_task(_report(board, worker), name="report")
        except* HeliographError as errors:
            raise errors.exceptions[0] from errors
        finally:
            await closing.aclose()


async def _report(board: ProgressBoard, worker: ReplicationWorker) -> None:
    while True:
        try:
            await board.report(worker.statistics())
            worker.workers = await board.workers()
        except SessionExpiredError:
            raise
        except HeliographError as error:
            log.info("the progress of repair cannot be reported now: %s", error)
        await asyncio.sleep(until_tick(REPORT_SECONDS))


async def _close(store: MetadataStore) -> None:
    with contextlib.suppress(HeliographError):
        await store.close()
