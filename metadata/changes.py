"""Following what changes below some nodes, over broken connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metadata.store import MetadataStore, SessionState, Watch, Watcher


class Changes:
    """A recursive watch on each of some nodes, and a word whenever these may have missed something."""

    def __init__(
        self, store: MetadataStore, paths: Sequence[str], on_event: Watcher, on_missed: Callable[[], None]
    ) -> None:
        """
        Args:
            on_event: called with every CREATED, CHANGED and DELETED at the nodes and below.
            on_missed: called when the session is CONNECTED again: there may have been changes that nobody was told of.
        """
        self._store = store
        self._paths = paths
        self._on_event = on_event
        self._on_missed = on_missed
        self._watches: list[Watch] = []

    async def start(self) -> None:
        """Follow from now on.

        Raises:
            ConnectionLossError, SessionExpiredError: nothing is followed.
        """
        self._store.add_session_listener(self._on_session)
        try:
            for path in self._paths:
                self._watches.append(await self._store.watch(path, self._on_event))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Follow no longer. Idempotent."""
        self._store.remove_session_listener(self._on_session)
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._on_missed()
