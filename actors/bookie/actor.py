"""A bookie as a Ray actor: lifecycle, admin calls and metrics. Entries go over its socket, never through the actor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ray.util.metrics import Gauge

from heliograph.actors.bookie import start_failure
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.registration import forget_if_dead
from heliograph.actors.errors import BookieError
from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task, run_to_completion
from heliograph.base.interval import until_tick
from heliograph.base.processes import end_of_part
from heliograph.base.version import methods_removed
from heliograph.metadata.connect import connect_renewing_store
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.store import MetadataStore
from heliograph.metrics.bookie import BOOKIE_METRICS

log = logging.getLogger(__name__)
METRICS_SECONDS = 10.0  # Ray exports them as often
# The journal's thread needs the interpreter lock after each sync. With the default switch interval of 5 ms a busy event
# loop would add up to 5 ms to every acknowledgement.
SWITCH_INTERVAL_SECONDS = 0.0005
EXIT_STORAGE_FAILED = 74  # EX_IOERR: Ray starts the actor again, and the bookie replays its journal


@methods_removed("_reopen")
class BookieActor:
    """One bookie in its own process.

    A returned ``start`` means that the bookie is registered and serves. A lost call may have happened; every method
    may be called again. When its storage fails the part ends, and nothing that it acknowledged is lost.
    """

    def __init__(self, config: BookieConfig, metadata_url: str) -> None:
        if not __debug__:
            raise RuntimeError("a bookie relies on its assertions: do not start it with -O")
        self._config = config
        self._metadata_url = metadata_url
        self._bookie: Bookie | None = None
        self._store: MetadataStore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._metrics_task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._erasing = asyncio.Lock()  # a caller that gave up asks again while directories are being deleted
        self._end = end_of_part(EXIT_STORAGE_FAILED)

    def __repr__(self) -> str:
        return f"Bookie({self._config.bookie_id}@{self._config.rack})"

    async def start(self) -> str:
        """Start unless it is started; return ``host:port`` of the data plane.

        Raises:
            the errors of ``Bookie.start``; nothing is left behind but their reason in metadata, call again.
        """
        async with self._erasing, self._starting:
            if self._bookie is None:
                sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
                self._loop = asyncio.get_running_loop()
                self._store = await self._connect()
                self._bookie = bookie = await self._started(self._store)
                self._metrics_task = self._loop.create_task(self._export_metrics(bookie), name="metrics")
            return self._bookie.address

    async def _started(self, store: MetadataStore) -> Bookie:
        """Start a bookie. After a failure, ``helio status`` has the reason; its process delays the next start."""
        bookie_id = self._config.bookie_id
        bookie = Bookie(self._config, store, on_failure=partial(_exit, self._end))
        before = None
        try:
            before = await start_failure.last_failure(store, bookie_id)
            await bookie.start()
        except BaseException as error:
            if isinstance(error, BookieError):
                with contextlib.suppress(MetadataError):
                    await forget_if_dead(store, bookie_id)  # before anyone can read why: it does not serve
                why = await start_failure.note_failure(store, bookie_id, error, before, wall_ms())
                log.error("bookie %s does not start: %s: %s", bookie_id, type(error).__name__, why)
                error.what, error.way_out = why, ""  # for the caller, too
            await store.close()
            raise
        await start_failure.clear_failure(store, bookie_id)
        return bookie

    async def address(self) -> str:
        """Return ``host:port`` of the data plane; empty before ``start``."""
        return "" if self._bookie is None else self._bookie.address

    async def statistics(self) -> dict[str, object]:
        """Return the figures of ``Bookie.statistics``; empty before ``start``."""
        return {} if self._bookie is None else self._bookie.statistics()

    async def history(self) -> dict[str, object]:
        """Return two hours of the statistics, as ``History.told`` does; empty before ``start``."""
        return {} if self._bookie is None else self._bookie.history.told()

    async def directories(self) -> dict[str, list[str]]:
        """Return the paths of the directories by role, ``journal`` and ``data``, on the node of this process."""
        return {
            "journal": list(map(str, self._config.journal_directories)),
            "data": list(map(str, self._config.data_directories)),
        }

    async def stop(self) -> None:
        """Unregister, answer running requests, flush, close. Idempotent."""
        async with self._starting:
            await end_task(self._metrics_task)
            self._metrics_task = None
            if self._bookie is not None:
                await self._bookie.stop()
                self._bookie = None
            if self._store is not None:
                await self._store.close()
                self._store = None

    async def erase(self) -> None:
        """Stop and delete this bookie's directories. All its ledgers must be on other bookies.

        Raises:
            OSError: a directory could not be deleted. Call again.
        """
        await run_to_completion(self._erase())

    async def _erase(self) -> None:
        async with self._erasing:
            await self.stop()
            for directory in (*self._config.journal_directories, *self._config.data_directories):
                await asyncio.to_thread(_delete_tree, directory)

    async def _connect(self) -> MetadataStore:
        return await connect_renewing_store(self._metadata_url, session_timeout_ms=self._config.session_timeout_ms)

    async def _export_metrics(self, bookie: Bookie) -> None:
        gauges = {metric.key: Gauge(metric.name, tag_keys=("bookie",)) for metric in BOOKIE_METRICS if metric.is_rays}
        tags = {"bookie": self._config.bookie_id}
        while True:
            statistics = bookie.statistics()
            for key, gauge in gauges.items():
                gauge.set(float(statistics[key]), tags)  # type: ignore[arg-type]
            await asyncio.sleep(until_tick(METRICS_SECONDS))


def _delete_tree(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


def _exit(end: Callable[[], None], error: BaseException) -> None:
    log.critical("the bookie exits: %s", error)
    end()
