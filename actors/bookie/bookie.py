"""One bookie without Ray: it opens directories, serves clients, and closes again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from heliograph.actors.bookie import cookies
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import Disk, DiskLock, RealDisk
from heliograph.actors.bookie.disk.monitor import DiskMonitor, measure
from heliograph.actors.bookie.disk.read_threads import ReadThreads
from heliograph.actors.bookie.identity import Plan, newest
from heliograph.actors.bookie.identity import plan as plan_start
from heliograph.actors.bookie.journal.journal import Journal, JournalPorts
from heliograph.actors.bookie.memory_bounds import memory_bounds
from heliograph.actors.bookie.recovery.opening import (
    Opened,
    lock_directories,
    open_storage,
    start_journals,
)
from heliograph.actors.bookie.registration import Registrar
from heliograph.actors.bookie.server import kept_port
from heliograph.actors.bookie.server.reads import EntryReads
from heliograph.actors.bookie.server.server import BookieServer
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.bookie.upkeep import ledger_listing, scrub_record
from heliograph.actors.bookie.upkeep.checkpointer import Checkpointer
from heliograph.actors.bookie.upkeep.gc import GarbageCollector
from heliograph.actors.bookie.upkeep.scrub import Scrub
from heliograph.actors.errors import BookieStorageError, CookieMismatchError
from heliograph.actors.wire.messages import TLS_SCHEME
from heliograph.base.completion import end_task
from heliograph.base.errors import ResourceError
from heliograph.base.guard import memory
from heliograph.base.interval import until_tick
from heliograph.base.peer import host_and_port
from heliograph.metadata import paths
from heliograph.metadata.bookie_records import Cookie
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.recipes.ids import last_ledger_id
from heliograph.metadata.store import MetadataStore
from heliograph.metrics.bookie import BOOKIE_METRICS
from heliograph.metrics.history import History, keep_history
from heliograph.metrics.metric import merged

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Running:
    """The parts of a running bookie."""

    storage_thread: ThreadPoolExecutor
    read_threads: ReadThreads
    reads: EntryReads
    checkpointer: Checkpointer
    gc: GarbageCollector
    scrub: Scrub
    server: BookieServer


class Bookie:
    """A storage server that acknowledges entries only when they are durable (I1).

    A failure that leaves the state of the disk unknown ends the service: connections are aborted, nothing more is
    acknowledged, ``failure`` is set and ``on_failure`` is called. The process should then exit and start again.
    """

    def __init__(
        self,
        config: BookieConfig,
        store: MetadataStore | None,
        *,
        disk: Disk | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """
        Args:
            store: metadata; None: no registration, no cookie in metadata, no garbage collection. With a store that does
                not renew its sessions the bookie stays unregistered when the session is over.
            disk: None for the real disk.
            on_failure: called once, on the event loop, when the bookie stops after a failure.
        """
        self._config = config
        self._store = store
        self._disk = disk if disk is not None else RealDisk()
        self._on_failure = on_failure
        self._directories = list(dict.fromkeys([*config.journal_directories, *config.data_directories]))
        self._locks: list[DiskLock] = []
        self._cookie: Cookie | None = None  # set once it is in metadata
        self._opened: Opened | None = None
        self._running: Running | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._space = DiskMonitor(config)
        self._space_reported_at = time.monotonic()
        self._space_task: asyncio.Task[None] | None = None
        self.history = History()
        self._history_task: asyncio.Task[None] | None = None
        self._registrar: Registrar | None = None
        self._started_at = time.monotonic()
        self._replay_seconds = 0.0
        self._is_stopping = False
        self.failure: BaseException | None = None
        self.address = ""

    async def start(self) -> None:
        """Lock, check cookies, replay, listen, register.

        Raises:
            DirectoryLockedError, CookieMismatchError, JournalCorruptError, BookieStorageError: as their names say.
            ResourceError: the address cannot be used.
            MetadataError: the store did not answer.
        After an error the bookie holds no resources.
        """
        memory.host(self._config.bookie_id, memory_bounds(self._config))
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        self._started_at = time.monotonic()
        await asyncio.to_thread(self._require_disk)
        self._locks = await asyncio.to_thread(lock_directories, self._disk, self._directories)
        plan, version, accepts_loss = await self._plan()
        # From here on, directories are in the order of the cookie: marks and routes count them.
        self._config = replace(self._config, journal_directories=plan.journals, data_directories=plan.data)
        await asyncio.to_thread(cookies.write_drafts, self._disk, plan)
        self._opened = await asyncio.to_thread(
            partial(
                open_storage,
                self._disk,
                self._config,
                plan.lost,
                joining=plan.joining,
                outdated=plan.outdated,
                routes=plan.cookie.routes,
                accepts_loss=accepts_loss,
            )
        )
        if plan.is_loss or self._opened.is_damaged:
            await self._enter_limbo(self._opened.storage)
        loop = asyncio.get_running_loop()
        ports = JournalPorts(partial(_post, loop), self.fail, loop.call_soon)
        await asyncio.to_thread(start_journals, self._disk, self._opened, ports)
        self._replay_seconds = time.monotonic() - self._started_at
        await cookies.commit(self._disk, self._store, plan, version)  # limbo is durable now (I6)
        self._cookie = plan.cookie
        await self._serve(self._opened.storage)

    async def _serve(self, storage: BookieStorage) -> None:
        config = self._config
        storage_thread = ThreadPoolExecutor(1, "bookie-storage")
        read_threads = ReadThreads(config.read_threads)
        reads = EntryReads(storage, read_threads)
        scrubbed = await asyncio.to_thread(scrub_record.load, self._disk, storage.directories[0].path)
        checkpointer = Checkpointer(storage, storage_thread, config.flush_interval_ms, self.fail)
        running = self._running = Running(
            storage_thread,
            read_threads,
            reads,
            checkpointer,
            GarbageCollector(
                storage,
                storage_thread,
                self._current_store,
                self._recognise,
                self.fail,
                lambda: self._space.is_read_only,
            ),
            Scrub(storage, read_threads, self._current_store, self.fail, scrubbed),
            BookieServer(
                config,
                storage,
                reads,
                checkpointer,
                self._space,
                self.statistics,
                self.fail,
            ),
        )
        running.checkpointer.on_settled = running.server.adjust_reading
        await self._update_draining()
        await self._measure()
        port = await self._listen(running.server, storage.directories[0].path)
        scheme = TLS_SCHEME if config.tls is not None else ""
        self.address = scheme + host_and_port(config.advertised_host or config.host, port)
        running.checkpointer.start()
        running.gc.start()
        running.scrub.start()
        if self._store is not None:
            self._registrar = Registrar(self._store, self._record(), self._recognise, self.fail)
            await self._registrar.register(is_read_only=self._space.is_read_only)
        self._space_task = asyncio.get_running_loop().create_task(self._watch_space(), name="disk space")
        keeping = keep_history(self.history, BOOKIE_METRICS, self.statistics)
        self._history_task = asyncio.get_running_loop().create_task(keeping, name="history")

    async def _listen(self, server: BookieServer, directory: Path) -> int:
        """Listen at the configured port; without one, at the previous start's port or a free one. Return the port."""
        config = self._config
        if config.port:
            return await server.start(config.host, config.port)
        kept = await asyncio.to_thread(kept_port.load, self._disk, directory)
        try:
            port = await server.start(config.host, kept)
        except ResourceError as error:
            if not kept:
                raise
            log.warning("the port of the start before is not free, another one is taken: %s", error)
            port = await server.start(config.host, 0)
        if port != kept:
            await asyncio.to_thread(kept_port.save, self._disk, directory, port)
        return port

    async def stop(self) -> None:
        """Unregister, answer running requests, flush, close. Idempotent; after a failure it only closes."""
        if self._is_stopping:
            return
        self._is_stopping = True
        memory.leave(self._config.bookie_id)
        await end_task(self._history_task)
        await end_task(self._space_task)
        if self._registrar is not None:
            await self._registrar.stop()
        if self._running is not None:
            await self._stop_running(self._running)
        if self._opened is not None:
            is_orderly = self._running is not None and self.failure is None
            with contextlib.suppress(BookieStorageError):
                await asyncio.to_thread(self._opened.storage.close, is_orderly=is_orderly)
        for lock in self._locks:
            lock.release()

    async def _stop_running(self, running: Running) -> None:
        await running.server.stop()
        await running.scrub.stop()
        await running.gc.stop()
        await running.checkpointer.stop()
        if self.failure is None and self._opened is not None and self._opened.storage.has_changes:
            with contextlib.suppress(BookieStorageError):  # the journal holds everything
                await running.checkpointer.checkpoint()
        running.storage_thread.shutdown()
        running.read_threads.shutdown()

    def fail(self, error: BaseException) -> None:
        """Stop serving, because the state of the disk or of this process is unknown."""
        if self.failure is not None or self._is_stopping:
            return
        self.failure = error
        log.critical("bookie %s stops serving: %s", self._config.bookie_id, error, exc_info=error)
        if self._running is not None:
            self._running.server.abort()
        if self._registrar is not None:  # clients should not be sent here, even if the process goes on
            self._leaving = asyncio.get_running_loop().create_task(self._registrar.stop(), name="unregister")
        if self._on_failure is not None:
            self._on_failure(error)

    async def checkpoint(self) -> None:
        """Run a checkpoint now.

        Raises:
            BookieStorageError: it failed and can be retried.
        """
        assert self._running is not None, "the bookie was started"
        await self._running.checkpointer.checkpoint()

    async def collect_garbage(self) -> None:
        """Run one round of garbage collection now.

        Raises:
            MetadataError, BookieStorageError: the round was abandoned.
        """
        assert self._running is not None, "the bookie was started"
        await self._running.gc.collect()

    async def scrub(self) -> int:
        """Verify all stored entries now. Return how many ledgers have damaged or missing entries.

        Raises:
            DiskPoisonedError: the state of the disk is unknown.
        """
        assert self._running is not None, "the bookie was started"
        return await self._running.scrub.scrub()

    async def _plan(self) -> tuple[Plan, int | None, bool]:
        """Return the plan of this start, the version of the cookie in metadata, and whether a loss is accepted."""
        config, store = self._config, self._store
        instance_id = await cookies.instance_of(store)
        stored = await cookies.stored_cookie(store, config.bookie_id)
        found = await asyncio.to_thread(cookies.read_cookies, self._disk, self._directories)
        truth = newest(config.bookie_id, instance_id, stored.cookie, found, has_store=store is not None)
        accepts_loss = config.accept_storage_loss or await cookies.may_replace(store, truth)
        plan = plan_start(
            config,
            instance_id,
            truth,
            found,
            accepts_loss=accepts_loss,
            last_ledger_id=None if store is None else await last_ledger_id(store),
            new_id=lambda: secrets.token_hex(8),
        )
        for path in plan.joining:
            log.info("bookie %s gets a new directory: %s", config.bookie_id, path)
        for path in (*plan.lost, *plan.outdated):
            log.warning("bookie %s goes on without the data that %s had", config.bookie_id, path)
        return plan, stored.version, accepts_loss

    def _require_disk(self) -> None:
        """Check that the disk of this bookie is there, so that none of its directories is made where it is mounted."""
        disk = self._config.disk
        if disk and not self._disk.exists(Path(disk)):
            raise BookieStorageError(
                f"the disk {disk} of bookie {self._config.bookie_id} is not there: mount it, or take the bookie out "
                f"with helio bookies decommission {self._config.bookie_id}"
            )

    async def _enter_limbo(self, storage: BookieStorage) -> None:
        if self._store is None:
            raise CookieMismatchError("without metadata it is unknown which ledgers a lost directory held")
        last_id = await last_ledger_id(self._store)
        elsewhere = set(storage.ledgers.ids())
        async for ledger_id, may_be_fenced in ledger_listing.ledgers_on(self._store, self._config.bookie_id):
            storage.put_into_limbo(ledger_id, is_fenced=may_be_fenced)  # I6: before the bookie serves
            elsewhere.discard(ledger_id)
        for ledger_id in elsewhere:
            storage.put_into_limbo(ledger_id, is_fenced=True)
        await asyncio.to_thread(storage.doubt, last_id)  # I4: also ledgers that were placed elsewhere since then

    async def _watch_space(self) -> None:
        while True:
            await asyncio.sleep(until_tick(self._config.space_check_ms / 1000))
            try:
                await self._update_draining()
                await self._measure()
                if self._registrar is not None:
                    await self._report_space(self._registrar)
            except (BookieStorageError, MetadataError) as error:
                log.warning("bookie %s could not check its disk space: %s", self._config.bookie_id, error)
            except Exception as error:  # a bug of ours
                self.fail(error)
                return

    async def _measure(self) -> None:
        space = self._space
        before = (space.is_full, space.is_nearly_full)
        space.update(await asyncio.to_thread(measure, self._disk, self._directories))
        if (space.is_full, space.is_nearly_full) == before:
            return
        what = "is full: the bookie is read-only" if space.is_full else "is nearly full"
        if not space.is_nearly_full:
            what = "has space again"
        log.log(
            logging.WARNING if space.is_nearly_full else logging.INFO,
            "bookie %s: a disk %s (%.0f%% used, %d MiB free, %d MiB kept as a reserve)",
            self._config.bookie_id,
            what,
            100 * space.used_share,
            space.free_bytes >> 20,
            self._config.reserve_bytes >> 20,
        )

    async def _update_draining(self) -> None:
        store = self._current_store()
        with contextlib.suppress(MetadataError):  # the last known value holds until the store answers
            if store is not None:
                self._space.is_draining = await store.exists(paths.bookie_draining(self._config.bookie_id)) is not None

    async def _report_space(self, registrar: Registrar) -> None:
        space = self._space
        is_news = registrar.note_space(
            used_share=space.used_share, is_full=space.is_full, is_nearly_full=space.is_nearly_full
        )
        await registrar.move(
            is_read_only=self._space.is_read_only
        )  # each time, because the last attempt may have failed
        now = time.monotonic()
        if is_news or now - self._space_reported_at >= self._config.space_report_ms / 1000:
            await registrar.report_space(self._space.free_bytes, self._space.total_bytes)
            self._space_reported_at = now

    async def _recognise(self, store: MetadataStore) -> None:
        assert self._cookie is not None, "the bookie was started"
        await cookies.recognise(store, self._cookie)

    def _current_store(self) -> MetadataStore | None:
        return self._store

    def _record(self) -> BookieRegistration:
        return BookieRegistration(
            self._config.bookie_id,
            self.address,
            self._config.rack,
            self._space.free_bytes,
            self._space.total_bytes,
            used_share=self._space.used_share,
            is_full=self._space.is_full,
            is_nearly_full=self._space.is_nearly_full,
        )

    def statistics(self) -> dict[str, object]:
        """Return the figures of the bookie, which must be started: each number is a metric of ``BOOKIE_METRICS``.

        Counters are sums since the start, sizes are bytes, times are seconds.
        """
        running = self._running
        assert self._opened is not None, "the bookie was started"
        assert running is not None, "the bookie was started"
        storage, summary, server = self._opened.storage, self._opened.summary, running.server
        used = memory.memory()
        return {
            "bookie_id": self._config.bookie_id,
            "address": self.address,
            "is_read_only": self._space.is_read_only,
            "is_registered": self._registrar is not None and self._registrar.is_registered,
            "uptime_seconds": time.monotonic() - self._started_at,
            "memory_bytes": used.used,
            "memory_budget_bytes": used.budget,
            "unsent_closed": server.unsent.dropped,
            "connections": server.connections,
            "connections_local": server.local.accepted,
            "connections_refused": server.guard.refused,
            "unfinished_bytes": server.guard.unfinished_bytes,
            "unfinished_closed": server.guard.unfinished_closed,
            "ledgers": len(storage.ledgers),
            "entries_added": storage.entries_added,
            "adds_refused": server.adds_refused,
            "clients_refused": server.clients_refused,
            **_journal_figures(storage.journals),
            "write_cache_bytes": storage.write_cache.size_bytes,
            "write_cache_entries": storage.write_cache.entries,
            "read_cache_bytes": storage.read_cache.size_bytes,
            "checkpoint_number": storage.checkpoint_number,
            "bytes_kept": storage.bytes_kept,
            "kept_logs": storage.kept_logs,
            "read_latency": running.reads.latency.told(),
            "read_aheads": running.reads.ahead.begun,
            "read_ahead_hits": running.reads.ahead.hits,
            **asdict(running.reads.statistics),
            **asdict(running.checkpointer.statistics),
            **asdict(running.gc.statistics),
            "ledgers_in_limbo": storage.ledgers.in_limbo(),
            **running.scrub.figures(),
            **self._space.figures(),
            "replayed_files": summary.files,
            "replayed_entries": summary.entries,
            "replayed_fences": summary.fences,
            "replay_seconds": self._replay_seconds,
            "certificate_end_timestamp_seconds": 0.0 if server.tls is None else server.tls.ends_at,
        }


def _journal_figures(journals: Sequence[Journal]) -> dict[str, Any]:
    """Return the statistics that sum the journals up."""
    found = [journal.statistics for journal in journals]
    sums = ("syncs", "loop_syncs", "records", "sync_seconds", "rotations")
    of_most = ("sync_seconds_max", "last_batch_records")
    seconds = {"sum": sum(each.sync_seconds for each in found)}
    return {
        **{f"journal_{name}": sum(getattr(each, name) for each in found) for name in sums},
        **{f"journal_{name}": max(getattr(each, name) for each in found) for name in of_most},
        "journal_bytes_fsynced": sum(each.bytes_synced for each in found),
        "journal_sync_latency": merged(each.latency for each in found) | seconds,
        "journal_queue_bytes": sum(journal.queued_bytes for journal in journals),
    }


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(call)
