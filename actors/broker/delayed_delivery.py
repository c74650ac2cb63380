"""Holds the entries of one subscription back until their time: the index, its storage and the timer.

What the index decides is pure (``delayed_index.py``); this shell stores runs, reads them when their time comes, and
wakes the subscription. One such task runs at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from actors.broker.chain import Chain
from actors.broker.cursor import Cursor
from actors.broker.delayed_index import DelayedIndex, Item, Load
from actors.broker.delayed_log import DelayedLog
from actors.broker.topic_record import now_ms
from actors.errors import EntryDamagedError, NoSuchLedgerError
from heliograph.errors import HeliographError

DUE_AT_ONCE_MAX = 1_000  # entries whose time has come handed to the dispatcher in one turn
TICK_SECONDS_MIN = 0.02  # between two looks
TIMER_SECONDS_MAX = 3_600.0  # clocks may be set: look again at least so often
RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class DelayedDelivery:
    """All calls on one event loop.

    Args:
        delayed_log: None for a subscription that is not durable; it holds at most as many entries as fit memory.
        wake: called when the subscription should look again.
        clock: the wall clock in milliseconds, against which producers set times.
    """

    def __init__(
        self,
        chain: Chain,
        cursor: Cursor,
        delayed_log: DelayedLog | None,
        wake: Callable[[], None],
        clock: Callable[[], int] = now_ms,
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
        """Whether what the previous owner knew is known; loads it otherwise, and wakes the subscription then."""
        if not self.is_loaded and asyncio.get_running_loop().time() >= self._retry_at:
            self._start(self._load)
        return self.is_loaded

    def hold_back(self, index: int, due_ms: int) -> bool:
        """Whether an entry has to wait, and will; False when its time has come."""
        if due_ms <= self.clock():
            return False
        self.index.add(index, due_ms)
        self._look()
        return True

    def take_due(self) -> Sequence[int]:
        """Some entries whose time has come; call again while there are any."""
        if not self.index.count:
            return ()
        due = self.index.take_due(self.clock(), DUE_AT_ONCE_MAX)
        self._look()
        return due

    def forget(self, index: int) -> None:
        """An entry was acknowledged."""
        if index in self.index:
            self.index.forget(index)

    def forget_below(self, mark: int) -> None:
        """Everything below was acknowledged."""
        if self.index.count:
            self.index.forget_below(mark)

    def stop(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None:
            self._work.cancel()

    async def close(self) -> None:
        """Let go of the ledgers."""
        self.stop()
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)
        if self._log is not None:
            await self._log.close()

    async def delete(self) -> None:
        """Delete what is stored."""
        self.stop()
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)
        if self._log is not None:
            await self._log.delete()

    # Inside

    def _look(self) -> None:
        """Do what is due now, and set the timer for what is due next."""
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
        self._timer = loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wake()  # whoever takes what is due has us look on; nobody there: nothing to do

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._work is None and not self._is_closed:
            self._work = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HeliographError as error:
            log.warning("delayed delivery: %s", error)
            self._retry_at = asyncio.get_running_loop().time() + RETRY_SECONDS
            if not self._is_closed:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake)
        finally:
            self._work = None
        if not self._is_closed:
            self._wake()

    async def _load(self) -> None:
        assert self._log is not None, "only what is stored is loaded"
        try:
            async for key, items in self._log.load():
                if not self.index.restore(key, items, self._is_open):
                    await self._log.finished(key)
        except (NoSuchLedgerError, EntryDamagedError) as error:
            log.error("a delayed index is lost, entries are read again instead: %s", error)
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

    async def _read(self, load: Load) -> None:
        assert self._log is not None, "runs are made where they can be stored"
        try:
            items, next_ms = await self._log.read(load.run.key, load.run.loaded, load.count)
        except (NoSuchLedgerError, EntryDamagedError) as error:
            log.error("a run of a delayed index is lost, entries are read again instead: %s", error)
            self.index.not_loaded(is_gone=True)
            return
        except BaseException:
            self.index.not_loaded(is_gone=False)
            raise
        if self.index.loaded(items, next_ms):
            await self._log.finished(load.run.key)

    def _is_open(self, index: int) -> bool:
        return not self._cursor.is_acknowledged(index)
