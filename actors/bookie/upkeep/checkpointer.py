"""Runs checkpoints on the storage thread, when a half of the write cache is full and at an interval."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError
from heliograph.base.completion import shielded

log = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class CheckpointStatistics:
    """Sums since the start, by the names of their metrics; times in seconds."""

    checkpoints: int = 0
    checkpoint_failures: int = 0
    bytes_flushed: int = 0
    flush_seconds: float = 0.0
    flush_seconds_max: float = 0.0


class Checkpointer:
    """The loop that runs checkpoints, one at a time."""

    def __init__(
        self,
        storage: BookieStorage,
        thread: ThreadPoolExecutor,
        interval_ms: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """
        Args:
            thread: the one thread that changes entry logs and indexes.
            interval_ms: time between two checkpoints when the cache does not fill.
            on_failure: called after a failed sync; other failures are retried.
        """
        self._storage = storage
        self._thread = thread
        self._interval_seconds = interval_ms / 1000
        self._on_failure = on_failure
        self._wanted = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.is_failing = False  # the last checkpoint failed: room in the cache may take long
        self.on_settled: Callable[[], None] = lambda: None
        self.statistics = CheckpointStatistics()

    def start(self) -> None:
        self._storage.on_flush_wanted = self._wanted.set
        self._task = asyncio.get_running_loop().create_task(self._run(), name="checkpoints")

    async def stop(self) -> None:
        """Stop the loop after the running checkpoint."""
        if self._task is not None:
            async with self._lock:
                self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def checkpoint(self) -> None:
        """Write everything added and fenced before the call to entry logs and index, and move the mark.

        Raises:
            BookieStorageError: it failed and can be retried.
        """
        # A caller that is cancelled must not let another checkpoint start beside this one.
        await shielded(asyncio.ensure_future(self._locked_checkpoint()))

    async def _locked_checkpoint(self) -> None:
        async with self._lock:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        loop = asyncio.get_running_loop()
        storage = self._storage
        started = time.perf_counter()
        checkpoint = storage.begin_checkpoint()
        await storage.place_entries()
        gone = storage.gone_in(checkpoint)
        try:
            written = await loop.run_in_executor(self._thread, storage.flush_checkpoint, checkpoint, gone)
        except BookieStorageError:
            self.statistics.checkpoint_failures += 1
            self.is_failing = True
            self.on_settled()
            raise
        self.is_failing = False
        storage.finish_checkpoint()
        took = time.perf_counter() - started
        self.statistics.checkpoints += 1
        self.statistics.bytes_flushed += written
        self.statistics.flush_seconds += took
        self.statistics.flush_seconds_max = max(self.statistics.flush_seconds_max, took)
        self.on_settled()
        await loop.run_in_executor(self._thread, storage.recycle_journals, checkpoint.mark)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._interval_seconds)
            self._wanted.clear()
            if not self._storage.has_changes:
                self.on_settled()  # memory of a load that has ended is freed
                continue
            try:
                await self.checkpoint()
            except DiskPoisonedError as error:
                self._on_failure(error)
                return
            except BookieStorageError as error:
                log.error("a checkpoint failed and is retried: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._wanted.set()
            except Exception as error:  # a bug of ours
                self._on_failure(error)
                return
