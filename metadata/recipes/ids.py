"""Ledger ids: unique over the life of the cluster, increasing, one write each, without conflicts between callers.

Each ``set`` of a node returns a version that no other ``set`` of it returns; that version is the id. A lost reply skips
an id, which does no harm. While a request of a session is under way, further callers wait, and the next request serves
all of them: an id is assigned after its call began, so the ids of one topic grow with its owners (I12). Versions begin
at 0 in a store that was filled from a backup or from another store. Such a store has a base, which is added to the
version. It is written before the cluster starts and never changes, so each session reads it once.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from heliograph.base.errors import HeliographError
from heliograph.metadata.errors import ConnectionLossError, NoNodeError
from heliograph.metadata.operator_records import LedgerIdBase
from heliograph.metadata.paths import LEDGER_ID_BASE, LEDGER_IDS
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore, Set, Stat

CONNECTION_LOSSES_MAX = 5  # of one call
IDS_AT_ONCE_MAX = 64  # of one request

_bases: WeakKeyDictionary[MetadataStore, int] = WeakKeyDictionary()  # of the sessions of this process
_queues: WeakKeyDictionary[MetadataStore, _Queue] = WeakKeyDictionary()  # of the same


async def next_ledger_id(store: MetadataStore) -> int:
    """Return an id, at least 1, that no other call returns.

    Raises:
        NoNodeError: the cluster was not initialised.
        ConnectionLossError: the connection was lost more than CONNECTION_LOSSES_MAX times.
        RecordError: the base is damaged.
    """
    queue = _queues.get(store)
    if queue is None:
        queue = _queues[store] = _Queue()
    for _ in range(CONNECTION_LOSSES_MAX):
        try:
            return await queue.next(store)
        except ConnectionLossError:
            continue
    return await queue.next(store)


async def last_ledger_id(store: MetadataStore) -> int:
    """Return the last ledger id that was assigned before the call; 0 for none.

    Raises:
        MetadataError: the read failed.
    """
    await store.sync()
    try:
        _, stat = await store.get(LEDGER_IDS)
    except NoNodeError:
        return 0
    return await _base(store) + stat.version


class _Queue:
    """The callers of one session that wait for ids. It must not refer to the store, which is its weak key."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[int]] = []
        self._task: asyncio.Task[None] | None = None  # while a request is under way

    async def next(self, store: MetadataStore) -> int:
        """Return an id. Raises the errors of the request for it."""
        mine: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve(store))
        return await mine

    async def _serve(self, store: MetadataStore) -> None:
        try:
            while self._waiting:
                served, self._waiting = self._waiting[:IDS_AT_ONCE_MAX], self._waiting[IDS_AT_ONCE_MAX:]
                served = [one for one in served if not one.done()]  # the others were cancelled
                if served:
                    await self._serve_some(store, served)
        finally:
            self._task = None

    async def _serve_some(self, store: MetadataStore, served: list[asyncio.Future[int]]) -> None:
        try:
            first = await _take_ids(store, len(served))
        except HeliographError as error:
            for one in served:
                if not one.done():
                    one.set_exception(error)
            return
        for number, one in enumerate(served):
            if not one.done():
                one.set_result(first + number)


async def _take_ids(store: MetadataStore, count: int) -> int:
    """Take adjacent ids. Return the first."""
    base = _bases.get(store)
    if base is None:
        base = await _base(store)
    if count == 1:
        stat = await store.set(LEDGER_IDS, b"")
    else:
        *_, last = await store.multi([Set(LEDGER_IDS, b"")] * count)
        assert isinstance(last, Stat), "a set returns the stat"
        stat = last
    _bases[store] = base  # only now it is known that the cluster was initialised
    return base + stat.version - count + 1


async def _base(store: MetadataStore) -> int:
    try:
        return (await read(store, LEDGER_ID_BASE, LedgerIdBase)).record.base
    except NoNodeError:
        return 0
