"""Which bookies are there, and when that changes."""

from __future__ import annotations

from collections.abc import Callable

from metadata import paths
from metadata.changes import Changes
from metadata.store import MetadataStore


class Membership:
    """The bookies that are alive: available or read-only.

    Args:
        on_change: called whenever the store reports a change, and when changes may have been missed.
    """

    def __init__(self, store: MetadataStore, on_change: Callable[[], None]) -> None:
        self._store = store
        lists = (paths.BOOKIES_AVAILABLE, paths.BOOKIES_READONLY, paths.BOOKIES_DRAINING)
        self._changes = Changes(store, lists, lambda _: on_change(), on_change)

    async def start(self) -> None:
        """Watch for changes."""
        await self._changes.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._changes.stop()

    async def alive(self) -> frozenset[str]:
        """Their ids, as of now.

        Read-only ones are read twice: a bookie that changes over in between is then seen in one place at least.
        """
        readonly = await self._store.children(paths.BOOKIES_READONLY)
        available = await self._store.children(paths.BOOKIES_AVAILABLE)
        readonly += await self._store.children(paths.BOOKIES_READONLY)
        return frozenset((*readonly, *available))

    async def draining(self) -> frozenset[str]:
        """Those that are to leave the cluster, alive or not."""
        return frozenset(await self._store.children(paths.BOOKIES_DRAINING))
