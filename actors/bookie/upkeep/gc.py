"""Garbage collection: deletes ledgers that metadata has deleted, removes dead entry logs, and compacts sparse ones.

A ledger is deleted only if it was known here before metadata was asked for it, and metadata answered twice that it is
gone, the second time to a direct read of its present state (I14, ``deletions.py``). Its fence stays (I4). A round also
removes entries of ledgers that metadata places on other bookies (``surplus.py``) and takes ledgers out of limbo
(``limbo.py``). While metadata that came out of a backup is not accepted, it says too little, and a round does none of
the three.

Compaction is minor (very sparse logs, often) or major (fuller logs too, seldom); both are due in the first round after
a start. On a nearly full disk every round is major and takes the sparsest log first. A log is rewritten only if its
live bytes fit beside the headroom.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.entry_log import KEPT_ID_LEAST
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.bookie.upkeep.compaction import compact_log
from heliograph.actors.bookie.upkeep.deletions import DeletionSearch
from heliograph.actors.bookie.upkeep.limbo import LimboExit
from heliograph.actors.bookie.upkeep.surplus import Surplus
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError
from heliograph.base.completion import end_task
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.recipes.restored_mark import is_restored
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class GcStatistics:
    """Sums since the start, by the names of their metrics."""

    gc_rounds: int = 0
    gc_failed_rounds: int = 0
    gc_rounds_without_deletion: int = 0  # a restored backup was not accepted
    gc_metadata_reads: int = 0  # in the search for deleted ledgers; a page of names counts as several
    ledgers_deleted: int = 0
    ledgers_emptied: int = 0  # ledgers that metadata places on other bookies
    limbo_cleared: int = 0  # ledgers
    logs_removed: int = 0
    logs_compacted: int = 0
    logs_left_for_headroom: int = 0  # sparse logs whose live bytes did not fit
    minor_compactions: int = 0  # rounds
    major_compactions: int = 0
    bytes_compacted: int = 0


class GarbageCollector:
    """Runs rounds of garbage collection, one after another."""

    def __init__(
        self,
        storage: BookieStorage,
        thread: ThreadPoolExecutor,
        store: Callable[[], MetadataStore | None],
        recognise: Callable[[MetadataStore], Awaitable[None]],
        on_failure: Callable[[BaseException], None],
        is_nearly_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            thread: the one thread that changes entry logs and indexes.
            store: returns the current metadata session; None: no ledger is deleted.
            recognise: raises CookieMismatchError if the store is, or has become, another cluster's.
            on_failure: called after a failed sync, and for such a store.
            is_nearly_full: whether space is so short that sparse logs are compacted at once.
        """
        self._is_nearly_full = is_nearly_full
        self._minor_due = self._major_due = 0.0  # seconds of the loop's clock
        self._storage = storage
        self._thread = thread
        self._store = store
        self._on_failure = on_failure
        self._one_at_a_time = asyncio.Lock()  # a round that was asked for removes no log that another one looks at
        self._task: asyncio.Task[None] | None = None
        self._limbo_task: asyncio.Task[None] | None = None
        self._deletions = DeletionSearch(storage.ledgers, storage.config.gc_interval_ms, recognise)
        self._limbo = LimboExit(storage, thread)
        self._surplus = Surplus(storage, self._empty)
        self.statistics = GcStatistics()

    def start(self) -> None:
        """Start; the first rounds come after one interval each."""
        loop, config = asyncio.get_running_loop(), self._storage.config
        self._task = loop.create_task(self._run(config.gc_interval_ms, self.collect), name="garbage collection")
        self._limbo_task = loop.create_task(self._run(config.limbo_interval_ms, self._follow_limbo), name="limbo")

    async def stop(self) -> None:
        """Stop. A step that runs on the storage thread ends well."""
        await end_task(self._task)
        await end_task(self._limbo_task)
        self._task = self._limbo_task = None

    async def collect(self) -> None:
        """Run one round, after a running one.

        Raises:
            MetadataError: metadata did not answer. No ledger was deleted because of that.
            CookieMismatchError: metadata does not know this bookie. No ledger was deleted because of that.
            BookieStorageError: the disk failed. Deletions up to that point are done.
        """
        async with self._one_at_a_time:
            await self._collect()

    async def _collect(self) -> None:
        store = self._store()
        if store is not None and await is_restored(store):  # I14
            self.statistics.gc_rounds_without_deletion += 1
            log.warning("the metadata is of a backup: no ledger is deleted until `helio backup accept`")
        elif store is not None:
            await self._delete_dead_ledgers(store)
            await self._review_ledgers(store)
        for directory in self._storage.directories:
            await self._remove_dead_logs(directory)
        live_share = self._live_share(asyncio.get_running_loop().time())
        # Single writes are switched off: rewrite kept journal files, because older releases cannot start on them.
        rewrites_kept = not self._storage.config.single_write_bytes and self._storage.kept_logs > 0
        if live_share > 0 or rewrites_kept:
            for directory in self._storage.directories:
                await self._compact(directory, live_share, rewrites_kept=rewrites_kept)
        self.statistics.gc_rounds += 1

    async def _run(self, interval_ms: int, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await step()
            except DiskPoisonedError as error:
                self._on_failure(error)
                return
            except (MetadataError, BookieStorageError) as error:
                self.statistics.gc_failed_rounds += 1
                log.warning("a round of upkeep was abandoned: %s", error)
            except Exception as error:  # a bug of ours
                self._on_failure(error)
                return

    async def _delete_dead_ledgers(self, store: MetadataStore) -> None:
        try:
            async for gone in self._deletions.round(store):
                await self._delete(gone)
        finally:
            self.statistics.gc_metadata_reads = int(self._deletions.reads)

    async def _review_ledgers(self, store: MetadataStore) -> None:
        now = asyncio.get_running_loop().time()
        self.statistics.limbo_cleared += await self._limbo.round(store, now)
        self.statistics.ledgers_emptied += await self._surplus.round(store, now)

    async def _follow_limbo(self) -> None:
        store = self._store()
        if store is not None and self._limbo.is_needed and not await is_restored(store):
            self.statistics.limbo_cleared += await self._limbo.follow(store, asyncio.get_running_loop().time())

    async def _empty(self, ledger_id: int) -> None:
        state = self._storage.ledgers.get(ledger_id)
        if state is not None:
            record = replace(state.record(), last_entry_id=-1)
            await self._on_thread(self._storage.directory_of(ledger_id).empty_ledger, record)

    async def _delete(self, ledger_ids: list[int]) -> None:
        storage = self._storage
        for ledger_id in ledger_ids:
            storage.write_cache.drop(ledger_id)
            storage.ledgers.drop(ledger_id)  # adds are refused from here on, and later flushes skip the ledger
        for directory in storage.directories:
            mine = [ledger_id for ledger_id in ledger_ids if storage.directory_of(ledger_id) is directory]
            if mine:
                await self._on_thread(directory.delete_ledgers, mine)
                storage.ledgers.deletions_noted(mine)
        self.statistics.ledgers_deleted += len(ledger_ids)

    def _live_share(self, now: float) -> float:
        """Return the live share below which logs are compacted in this round, 0 for none; schedule the next rounds."""
        config = self._storage.config
        if self._is_nearly_full() or now >= self._major_due:
            self._major_due = now + config.major_compaction_interval_ms / 1000
            self._minor_due = now + config.minor_compaction_interval_ms / 1000
            self.statistics.major_compactions += 1
            return config.major_compaction_live_share
        if now >= self._minor_due:
            self._minor_due = now + config.minor_compaction_interval_ms / 1000
            self.statistics.minor_compactions += 1
            return config.minor_compaction_live_share
        return 0.0

    async def _remove_dead_logs(self, directory: DataDirectory) -> None:
        for log_id, live_bytes in (await self._on_thread(directory.old_logs)).items():
            if live_bytes == 0:
                self.statistics.logs_removed += await self._on_thread(directory.remove_log_if_dead, log_id)

    async def _compact(self, directory: DataDirectory, live_share: float, *, rewrites_kept: bool) -> None:
        config = self._storage.config
        for log_id, live_bytes in await self._on_thread(_sparse_logs, directory, live_share, rewrites_kept):
            free_bytes, _ = await self._on_thread(self._storage.disk.space, directory.path)
            if free_bytes - live_bytes < config.compaction_headroom_bytes:
                self.statistics.logs_left_for_headroom += 1
                continue
            ledger_ids = await self._on_thread(directory.ledgers_in, log_id)
            self.statistics.bytes_compacted += await compact_log(
                directory, log_id, ledger_ids, self._on_thread, config.compaction_bytes_per_second
            )
            self.statistics.logs_compacted += 1
            self.statistics.logs_removed += await self._on_thread(directory.remove_log_if_dead, log_id)

    async def _on_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _sparse_logs(directory: DataDirectory, live_share: float, rewrites_kept: bool) -> list[tuple[int, int]]:
    """Return the logs with a smaller share of live bytes, the sparsest first, each with its live bytes. Blocks.

    Args:
        rewrites_kept: whether all kept journal files are among them.
    """
    found: list[tuple[float, int, int]] = []
    for log_id, live_bytes in directory.old_logs().items():
        try:
            share = live_bytes / max(directory.log_size(log_id), 1)
        except DiskPoisonedError:
            raise
        except BookieStorageError as error:
            log.error("compaction skips a log: %s", error)
            continue
        if live_bytes and (share < live_share or (rewrites_kept and log_id >= KEPT_ID_LEAST)):
            found.append((share, log_id, live_bytes))
    found.sort()
    return [(log_id, live_bytes) for _, log_id, live_bytes in found]
