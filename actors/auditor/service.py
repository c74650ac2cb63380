"""An auditor and a replication worker in one process. They go on in a new session when one is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
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
from heliograph.metadata.connect import connect_store
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)

RESTART_PAUSE_SECONDS = 0.5


class AuditorService:
    """Runs an auditor and a replication worker until stopped.

    Args:
        metadata_url: address of the store. A lost session is replaced by a new one.
        on_crash: called when the work ended by a failed assertion or another unexpected error.
    """

    def __init__(self, config: AuditorConfig, metadata_url: str, on_crash: Callable[[], None]) -> None:
        self._on_crash = on_crash
        self._config = config
        self._metadata_url = metadata_url
        self._auditor: Auditor | None = None
        self._worker: ReplicationWorker | None = None
        self._decommission: Decommission | None = None
        self._replacement: DiskReplacement | None = None
        self._task: asyncio.Task[None] | None = None
        self._sessions = 0

    async def start(self) -> None:
        """Open the first session and start the work. Idempotent.

        Raises:
            MetadataError: the store cannot be reached.
        """
        if self._task is None:
            store = await self._open()
            self._task = asyncio.create_task(self._run(store), name="auditor")
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Stop the work and end the session. Idempotent."""
        await end_task(self._task)
        self._task = None

    async def audit(self, *, everything: bool = False) -> dict[str, Any]:
        """Audit now, also if this auditor does not lead.

        Raises:
            ServiceNotReadyError: between two sessions.
        """
        if self._auditor is None:
            raise ServiceNotReadyError("the auditor is opening a new session: try again")
        return await self._auditor.audit(everything=everything)

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

    def statistics(self) -> dict[str, Any]:
        """Return the counts of auditor and worker in this session."""
        return {
            "sessions": self._sessions,
            "auditor": self._auditor.statistics() if self._auditor else {},
            "worker": self._worker.statistics() if self._worker else {},
        }

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.critical("the auditor crashed", exc_info=task.exception())
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
                self._auditor = self._worker = self._decommission = self._replacement = None
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
            bookies = auditor.membership
            worker = ReplicationWorker(
                auditor.tasks, ledgers, bookies.alive, bookies.draining, self._config, monotonic_ms
            )
            self._auditor, self._worker = auditor, worker
            self._decommission = Decommission(store, bookies, self._config)
            self._replacement = DiskReplacement(store, auditor, self._config)
            async with asyncio.TaskGroup() as group:
                group.create_task(auditor.run(), name="audit")
                group.create_task(worker.run(), name="replicate")
        except* HeliographError as errors:
            raise errors.exceptions[0] from errors
        finally:
            await closing.aclose()


async def _close(store: MetadataStore) -> None:
    with contextlib.suppress(HeliographError):
        await store.close()
