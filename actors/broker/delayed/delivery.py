"""Delayed delivery of one subscription: the index, its storage and the timer.

The index decides (``actors/broker/delayed/index.py``). This module stores its runs, reads them when they are due, and
wakes the subscription. One such task runs at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.delayed.index import DelayedIndex, Item, RunToLoad
from heliograph.actors.broker.delayed.log import DelayedLog
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.errors import EntryDamagedError, NoSuchLedgerError
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError

DUE_AT_ONCE_MAX = 1_000  # due entries handed to the dispatcher in one turn
TICK_SECONDS_MIN = 0.02  # of the timer
TIMER_SECONDS_MAX = 3_600.0  # of the timer, because the wall clock may be set meanwhile
RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class DelayedDelivery:
    """The delayed entries of one subscription. All calls on one event loop.

    Args:
        delayed_log: None for a non-durable subscription, whose delayed entries are kept in memory only.
        wake: called when entries may be due.
        clock: the wall clock in milliseconds, by which producers set delivery times.
    """

    def __init__(
        self,
        chain: Chain,
        cursor: Cursor,
        delayed_log: DelayedLog | None,
        wake: Callable[[], None],
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self.index = DelayedIndex()
        self.clock = clock
        self.is_loaded = delayed_log is None
        self._chain = chain
        self._cursor = cursor
        self._log = delayed_log
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self._is_closed = False

    def ensure_loaded(self) -> bool:
        """Return whether the index of the previous owner is loaded; otherwise load it, and wake the subscription
        then."""
        if not self.is_loaded and asyncio.get_running_loop().time() >= self._retry_at:
            self._start(self._load)
        return self.is_loaded

    def hold_back(self, index: int, due_ms: int, tick_ms: int = 0) -> bool:
        """Add an entry to the index and return True if it is not due; return False if it is due.

        Args:
            tick_ms: it is delivered at the next multiple of this; 0: at ``due_ms``.
        """
        if due_ms <= self.clock():
            return False
        if tick_ms:
            due_ms = -(-due_ms // tick_ms) * tick_ms
        self.index.add(index, due_ms)
        self._work_if_due()
        return True

    def take_due(self) -> Sequence[int]:
        """Remove and return some entries that are due; call again until there are none."""
        if not self.index.count:
            return ()
        due = self.index.take_due(self.clock(), DUE_AT_ONCE_MAX)
        self._work_if_due()
        return due

    def forget(self, index: int) -> None:
        """Remove an entry that was acknowledged."""
        if index in self.index:
            self.index.forget(index)

    def forget_below(self, mark: int) -> None:
        """Remove every entry below ``mark``: they were acknowledged."""
        if self.index.count:
            self.index.forget_below(mark)

    def stop(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None:
            self._work.cancel()

    async def close(self) -> None:
        """Stop, and close the ledgers."""
        self.stop()
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)
        if self._log is not None:
            await self._log.close()

    async def delete(self) -> None:
        """Stop, and delete the stored index."""
        self.stop()
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)
        if self._log is not None:
            await self._log.delete()

    def _work_if_due(self) -> None:
        """Read or store a run if one is due, and set the timer for the next time."""
        now = self.clock()
        if self._log is not None and self._work is None and asyncio.get_running_loop().time() >= self._retry_at:
            if (load := self.index.take_load(now)) is not None:
                self._start(lambda: self._read(load))
            elif (items := self.index.take_run()) is not None:
                self._start(lambda: self._store(items))
        at = self.index.next_time()
        if at is not None and self._work is None:
            self._set_timer(max(at - now, 0) / 1000)

    def _set_timer(self, seconds: float) -> None:
        seconds = min(max(seconds, TICK_SECONDS_MIN), TIMER_SECONDS_MAX)
        loop = asyncio.get_running_loop()
        if self._is_closed:
            return
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake()  # ``take_due`` sets the next timer; a subscription without consumers needs none

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._work is None and not self._is_closed:
            self._work = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HeliographError as error:
            log.warning("the index of delayed entries cannot be read or stored now: %s", error)
            self._retry_at = asyncio.get_running_loop().time() + RETRY_SECONDS
            if not self._is_closed:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake)
        finally:
            self._work = None
        if not self._is_closed:
            self._wake()

    async def _load(self) -> None:
        assert self._log is not None, "only stored messages are loaded"
        try:
            async for key, items in self._log.load():
                await asyncio.sleep(0)  # I24: a run is decoded in one step, and restored in another
                if not self.index.restore(key, items, self._is_open):
                    await self._log.finished(key)
        except (NoSuchLedgerError, EntryDamagedError) as error:
            log.error("an index of delayed entries is lost, the entries are read again instead: %s", error)
            self.index.clear()
            await self._log.forget_all()
        except BaseException:
            self.index.clear()
            raise
        self.is_loaded = True

    async def _store(self, items: list[Item]) -> None:
        assert self._log is not None, "runs are made where they can be stored"
        try:
            key = await self._log.store(items)
        except BaseException:
            self.index.not_stored()
            raise
        self.index.stored(key, items)

    async def _read(self, load: RunToLoad) -> None:
        assert self._log is not None, "runs are made where they can be stored"
        try:
            items, next_ms = await self._log.read(load.run.key, load.run.loaded, load.count)
        except (NoSuchLedgerError, EntryDamagedError) as error:
            log.error("a run of delayed entries is lost, the entries are read again instead: %s", error)
            self.index.not_loaded(is_gone=True)
            return
        except BaseException:
            self.index.not_loaded(is_gone=False)
            raise
        if self.index.loaded(items, next_ms):
            await self._log.finished(load.run.key)

    def _is_open(self, index: int) -> bool:
        return not self._cursor.is_acknowledged(index)
