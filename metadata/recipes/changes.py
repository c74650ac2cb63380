"""Changes below some nodes, followed over lost connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heliograph.metadata.store import MetadataStore, SessionState, Watch, Watcher


class Changes:
    """Recursive watches on some nodes, and a call whenever the watches may have missed a change."""

    def __init__(
        self, store: MetadataStore, paths: Sequence[str], on_event: Watcher, on_missed: Callable[[], None]
    ) -> None:
        """
        Args:
            on_event: called with every CREATED, CHANGED and DELETED at the nodes and below.
            on_missed: called when the session is CONNECTED again, as there may have been changes without an event.
        """
        self._store = store
        self._paths = paths
        self._on_event = on_event
        self._on_missed = on_missed
        self._watches: list[Watch] = []

    async def start(self) -> None:
        """Set the watches.

        Raises:
            ConnectionLossError, SessionExpiredError: no watch is set.
        """
        self._store.add_session_listener(self._on_session)
        try:
            for path in self._paths:
                self._watches.append(await self._store.watch(path, self._on_event))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancel the watches. Idempotent."""
        self._store.remove_session_listener(self._on_session)
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._on_missed()
