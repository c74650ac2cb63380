"""The bookies of the cluster that are alive or to leave, with a notice of changes."""

from __future__ import annotations

from collections.abc import Callable

from heliograph.actors.auditor.ledger_scan import OnUnreadable, scan_records
from heliograph.base.peer import host_in
from heliograph.metadata import paths
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.store import MetadataStore

READS_AT_ONCE_MAX = 16  # I15


class Membership:
    """The bookies that are alive, which are the available and the read-only ones.

    Args:
        on_change: called when the store reports a change, and when changes may have been missed.
    """

    def __init__(self, store: MetadataStore, on_change: Callable[[], None]) -> None:
        self._store = store
        lists = (paths.BOOKIES_AVAILABLE, paths.BOOKIES_READONLY, paths.BOOKIES_DRAINING)
        self._changes = Changes(store, lists, lambda _: on_change(), on_change)

    async def start(self) -> None:
        await self._changes.start()

    def stop(self) -> None:
        self._changes.stop()

    async def alive(self) -> frozenset[str]:
        """Return the ids of the bookies that are alive now.

        The read-only ones are read twice, so that a bookie that changes between the two lists is seen at least once.
        """
        readonly = await self._store.children(paths.BOOKIES_READONLY)
        available = await self._store.children(paths.BOOKIES_AVAILABLE)
        readonly += await self._store.children(paths.BOOKIES_READONLY)
        return frozenset((*readonly, *available))

    async def hosts(self, on_unreadable: OnUnreadable) -> dict[str, str]:
        """Return the hosts of the addresses of the bookies that are alive, by their ids."""
        found: dict[str, str] = {}
        for parent in (paths.BOOKIES_READONLY, paths.BOOKIES_AVAILABLE):
            records = await scan_records(self._store, parent, 1, BookieRegistration, READS_AT_ONCE_MAX, on_unreadable)
            found |= {name: host_in(bookie.address) for name, bookie in records.items()}
        return found

    async def draining(self) -> frozenset[str]:
        """Return the ids of the bookies that are to leave the cluster, alive or not."""
        return frozenset(await self._store.children(paths.BOOKIES_DRAINING))
