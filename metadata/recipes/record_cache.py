"""A cache of the records below one node, kept current by a watch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from heliograph.base.completion import end_task
from heliograph.metadata.codec import decode
from heliograph.metadata.errors import MetadataError, NoNodeError, RecordError
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.store import MetadataStore, SessionState, WatchEvent
from heliograph.metadata.znode import name_of, parent_of

R = TypeVar("R")

RETRY_SECONDS = 0.5  # after a refresh that failed

log = logging.getLogger(__name__)


class RecordCache(Generic[R]):
    """A cache of the children of a node and their records; it lags behind the store. All calls on one event loop.

    A damaged record is left out and logged. When the session is LOST the cache keeps its last content.

    Attributes:
        damaged: the names of records that cannot be read.
    """

    def __init__(
        self, store: MetadataStore, parent: str, kind: type[R], on_change: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            parent: the node whose children are records of ``kind``; it need not exist.
            on_change: called after every change of ``records`` or ``damaged``.
        """
        self.damaged: frozenset[str] = frozenset()
        self._store = store
        self._parent = parent
        self._kind = kind
        self._on_change = on_change
        self._changes = Changes(store, (parent,), self._on_event, self._on_missed)
        self._records: dict[str, R] = {}
        self._stale: set[str] = set()  # names that changed since they were read
        self._is_all_stale = False
        self._refreshing: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    @property
    def records(self) -> Mapping[str, R]:
        return self._records

    async def start(self) -> None:
        """Read all records and follow their changes.

        Raises:
            ConnectionLossError, SessionExpiredError: no change is followed.
        """
        await self._changes.start()
        try:
            self._is_all_stale = True
            await self._read_stale()
        except BaseException:
            self._changes.stop()
            raise

    async def stop(self) -> None:
        """Stop following changes. Idempotent."""
        self._changes.stop()
        await end_task(self._refreshing)
        self._refreshing = None

    def _on_event(self, event: WatchEvent) -> None:
        if event.path != self._parent and parent_of(event.path) == self._parent:
            self._stale.add(name_of(event.path))
            self._refresh_soon()

    def _on_missed(self) -> None:
        self._is_all_stale = True
        self._refresh_soon()

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        while self._stale or self._is_all_stale:
            try:
                await self._read_stale()
            except MetadataError as error:
                if self._store.state is SessionState.LOST:
                    return
                log.warning("reading %s again failed: %s", self._parent, error)
                self._is_all_stale = True
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_stale(self) -> None:
        async with self._reading:
            is_all, self._is_all_stale = self._is_all_stale, False
            names, self._stale = self._stale, set()
            fresh = {} if is_all else dict(self._records)
            damaged = set() if is_all else {*self.damaged} - names
            for name in await self._names() if is_all else names:
                fresh.pop(name, None)
                try:
                    found = await self._read(name)
                except RecordError as error:
                    damaged.add(name)
                    log.warning("the record %s/%s is left out: %s", self._parent, name, error)
                else:
                    if found is not None:
                        fresh[name] = found
            is_changed = fresh != self._records or damaged != self.damaged
            self._records, self.damaged = fresh, frozenset(damaged)
        if is_changed:
            self._on_change()

    async def _names(self) -> list[str]:
        try:
            return await self._store.children(self._parent)
        except NoNodeError:
            return []

    async def _read(self, name: str) -> R | None:
        try:
            value, _ = await self._store.get(f"{self._parent}/{name}")
        except NoNodeError:  # deleted between the listing and the read
            return None
        return decode(self._kind, value)
