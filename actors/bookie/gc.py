"""Space given back: ledgers that metadata says are gone, entry logs in which nothing is live, and sparse logs.

A ledger is deleted here only when it was known locally before the listing of metadata began, the listing went through
without an error and did not have it, and a direct read says once more that it is not there (I14). Its fence stays (I4).
Entries of ledgers that metadata places elsewhere go too (``surplus.py``), and ledgers leave limbo (``limbo.py``).

Compaction is minor (very sparse logs, often) or major (also fuller ones, seldom); both are due in the first round after
a start. On a nearly full disk every round is major, the sparsest log first, since nothing else gives space back. A log
is rewritten only while its live bytes fit with the headroom left free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from actors.bookie import ledger_listing
from actors.bookie.compaction import compact_log
from actors.bookie.data_directory import DataDirectory
from actors.bookie.limbo import LimboExit
from actors.bookie.storage import Storage
from actors.bookie.surplus import Surplus
from actors.errors import BookieStorageError, DiskPoisonedError
from metadata.errors import MetadataError
from metadata.store import MetadataStore

_log = logging.getLogger(__name__)
T = TypeVar("T")
DELETIONS_PER_BATCH = 256  # ledgers of one change of the index


@dataclass(slots=True)
class GcStatistics:
    """Sums since the start."""

    rounds: int = 0
    failed_rounds: int = 0
    ledgers_deleted: int = 0
    ledgers_emptied: int = 0  # metadata has them, and places them elsewhere
    limbo_cleared: int = 0  # ledgers
    logs_removed: int = 0
    logs_compacted: int = 0
    logs_left_for_headroom: int = 0  # sparse enough, but their live bytes did not fit
    minor_compactions: int = 0  # rounds
    major_compactions: int = 0
    bytes_compacted: int = 0


class GarbageCollector:
    """One round after the other."""

    def __init__(
        self,
        storage: Storage,
        thread: ThreadPoolExecutor,
        store: Callable[[], MetadataStore | None],
        recognise: Callable[[MetadataStore], Awaitable[None]],
        on_failure: Callable[[BaseException], None],
        is_nearly_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            thread: the one thread that changes entry logs and indexes.
            store: the metadata session of the moment; None: no ledger is ever found to be gone.
            recognise: raises CookieMismatchError for a store that is not, or not any more, this bookie's cluster.
            on_failure: told of a failed sync, and of such a store.
            is_nearly_full: whether space is short, so that sparse logs cannot wait for their time.
        """
        self._is_nearly_full = is_nearly_full
        self._minor_due = self._major_due = 0.0  # seconds of the loop's clock
        self._storage = storage
        self._thread = thread
        self._store = store
        self._recognise = recognise
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._limbo = LimboExit(storage, thread)
        self._surplus = Surplus(storage, self._empty)
        self.statistics = GcStatistics()

    def start(self) -> None:
        """Begin; the first round comes after one interval."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="garbage collection")

    async def stop(self) -> None:
        """End; a step under way on the storage thread still ends well."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def collect(self) -> None:
        """One round.

        Raises:
            MetadataError: metadata could not be asked; nothing was deleted for it.
            CookieMismatchError: it does not know this bookie; nothing was deleted for it.
            BookieStorageError: the disk failed; what was deleted until then was.
        """
        await self._delete_dead_ledgers()
        await self._look_at_ledgers()
        for directory in self._storage.directories:
            await self._remove_dead_logs(directory)
        live_share = self._live_share(asyncio.get_running_loop().time())
        if live_share > 0:
            for directory in self._storage.directories:
                await self._compact(directory, live_share)
        self.statistics.rounds += 1

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._storage.config.gc_interval_ms / 1000)
            try:
                await self.collect()
            except DiskPoisonedError as error:
                self._on_failure(error)
                return
            except (MetadataError, BookieStorageError) as error:
                self.statistics.failed_rounds += 1
                _log.warning("a round of garbage collection was given up: %s", error)
            except Exception as error:  # a promise of our own
                self._on_failure(error)
                return

    async def _delete_dead_ledgers(self) -> None:
        store = self._store()
        if store is None:
            return
        candidates = set(self._storage.ledgers.ids())  # I14: before metadata is listed
        async for group in ledger_listing.ledger_ids(store):
            candidates.difference_update(group)
        dead = [
            ledger_id for ledger_id in sorted(candidates) if not await ledger_listing.exists(store, ledger_id)
        ]  # I14
        if dead:
            await self._recognise(store)  # I14: a store that lost everything says of every ledger that it is gone
        for start in range(0, len(dead), DELETIONS_PER_BATCH):
            await self._delete(dead[start : start + DELETIONS_PER_BATCH])

    async def _look_at_ledgers(self) -> None:
        store = self._store()
        if store is not None:
            now = asyncio.get_running_loop().time()
            self.statistics.limbo_cleared += await self._limbo.round(store, now)
            self.statistics.ledgers_emptied += await self._surplus.round(store, now)

    async def _empty(self, ledger_id: int) -> None:
        state = self._storage.ledgers.get(ledger_id)
        if state is not None:
            record = replace(state.record(), last_entry_id=-1)
            await self._on_thread(self._storage.directory_of(ledger_id).empty_ledger, record)

    async def _delete(self, ledger_ids: list[int]) -> None:
        storage = self._storage
        for ledger_id in ledger_ids:
            storage.write_cache.active.drop(ledger_id)
            storage.ledgers.drop(ledger_id)  # refuses adds from here on; any flush handed over later leaves it out
        for directory in storage.directories:
            mine = [ledger_id for ledger_id in ledger_ids if storage.directory_of(ledger_id) is directory]
            if mine:
                await self._on_thread(directory.delete_ledgers, mine)
                storage.ledgers.deletions_noted(mine)
        self.statistics.ledgers_deleted += len(ledger_ids)

    def _live_share(self, now: float) -> float:
        """Logs with a smaller share of live bytes are rewritten in this round; 0: none. Takes note that they are."""
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

    async def _compact(self, directory: DataDirectory, live_share: float) -> None:
        config = self._storage.config
        for log_id, live_bytes in await self._on_thread(_sparse_logs, directory, live_share):
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


def _sparse_logs(directory: DataDirectory, live_share: float) -> list[tuple[int, int]]:
    """Logs with less than the share of live bytes, the sparsest first, each with its live bytes. Blocks."""
    found: list[tuple[float, int, int]] = []
    for log_id, live_bytes in directory.old_logs().items():
        try:
            share = live_bytes / max(directory.log_size(log_id), 1)
        except DiskPoisonedError:
            raise
        except BookieStorageError as error:
            _log.error("compaction leaves a log where it is, and goes on with the others: %s", error)
            continue
        if live_bytes and share < live_share:
            found.append((share, log_id, live_bytes))
    found.sort()
    return [(log_id, live_bytes) for _, log_id, live_bytes in found]
