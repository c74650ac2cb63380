"""Which bookies are there, and when that changes."""

from __future__ import annotations

from collections.abc import Callable

from metadata import paths
from metadata.store import MetadataStore, SessionState, Watch


class Membership:
    """The bookies that are alive: available or read-only.

    Args:
        on_change: called whenever the store reports a change, and when changes may have been missed.
    """

    def __init__(self, store: MetadataStore, on_change: Callable[[], None]) -> None:
        self._store = store
        self._on_change = on_change
        self._watches: list[Watch] = []

    async def start(self) -> None:
        """Watch for changes."""
        self._store.add_session_listener(self._on_session)
        for path in (paths.BOOKIES_AVAILABLE, paths.BOOKIES_READONLY):
            self._watches.append(await self._store.watch(path, lambda _: self._on_change()))

    def stop(self) -> None:
        """Watch no longer."""
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()

    async def alive(self) -> frozenset[str]:
        """Their ids, as of now.

        Read-only ones are read twice: a bookie that changes over in between is then seen in one place at least.
        """
        readonly = await self._store.children(paths.BOOKIES_READONLY)
        available = await self._store.children(paths.BOOKIES_AVAILABLE)
        readonly += await self._store.children(paths.BOOKIES_READONLY)
        return frozenset((*readonly, *available))

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._on_change()  # events may have been missed
