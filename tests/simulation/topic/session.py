"""A broker's session with the simulated metadata store. Requests are done in order, each once or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.metadata.errors import ConnectionLossError, MetadataError, SessionExpiredError
from heliograph.metadata.store import (
    ANY_VERSION,
    CHILDREN_PAGE_MAX,
    Create,
    Delete,
    Operation,
    SessionListener,
    SessionState,
    Set,
    Stat,
    Watcher,
)
from heliograph.metadata.znode import parent_of
from tests.simulation.cluster.channel import Channel
from tests.simulation.cluster.store import REQUEST_TIMEOUT_MS, Author, SimulatedStore
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.world import Process


class SimulatedSession:
    """The part of ``heliograph.metadata.store.MetadataStore`` that topics and their ledgers use."""

    session_token = ""

    def __init__(self, store: SimulatedStore, process: Process, loop: SimulatedLoop) -> None:
        self.state = SessionState.CONNECTED
        self.session_id = 1
        self.is_in_doubt = False
        self.silent_seconds = 0.0
        self._store = store
        self._process = process
        self._loop = loop
        self._author = Author(process.name)
        self._listeners: list[SessionListener] = []
        self._there = Channel(store.world, store.network, process, store, "metadata")
        self._back = Channel(store.world, store.network, store, process, "metadata")

    def add_session_listener(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    def remove_session_listener(self, listener: SessionListener) -> None:
        self._listeners.remove(listener)

    def lose(self) -> None:
        """End the session."""
        self._turn(SessionState.LOST)

    def silence(self) -> None:
        """Let the store answer nothing until ``resume``, and the owner know that."""
        if self.state is SessionState.CONNECTED:
            self._turn(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Undo ``silence``: the session stands, or another follows it, of which the owner is told in the same way."""
        if self.state is SessionState.SUSPENDED:
            self._turn(SessionState.CONNECTED)

    def _turn(self, state: SessionState) -> None:
        self.state = state
        with self._loop.running():
            for listener in list(self._listeners):
                listener(state)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        missing = parent_of(path)
        if parents and await self.exists(missing) is None:
            await self._make(missing)
        return str(await self._apply(Create(path, value, ephemeral, sequence)))

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:

        def execute() -> tuple[bytes | None, Stat]:
            node = self._store.tree.node(path)
            return node.value, node.stat()

        found: tuple[bytes, Stat] = await self._call(execute)
        return found

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> Stat:
        stat = await self._apply(Set(path, value, version))
        assert isinstance(stat, Stat), "that is what a set gives"
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._apply(Delete(path, version))

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:

        def execute() -> Stat | None:
            node = self._store.tree.find(path)
            return None if node is None else node.stat()

        found: Stat | None = await self._call(execute)
        return found

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        found: list[str] = await self._call(lambda: self._store.tree.children(path))
        return found

    async def children_from(self, path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        found: list[str] = await self._call(lambda: self._store.tree.children_from(path, start, limit))
        return found

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        done: list[Any] = await self._call(lambda: self._store.change(self._author, *operations))
        return done

    async def sync(self) -> None:
        """Do nothing: every read is of what the store has."""

    # -- internals

    async def _make(self, path: str) -> None:
        """Create a node and its parents, if they are missing."""

        def execute() -> None:
            self._store.make_parents(f"{path}/any")

        await self._call(execute)

    async def _apply(self, operation: Operation) -> Any:
        return (await self.multi([operation]))[0]

    def _call(self, execute: Callable[[], Any]) -> asyncio.Future[Any]:
        """Send a request. After a ConnectionLossError it may be done now, later, or never."""
        future = self._loop.create_future()
        if self.state is SessionState.LOST:
            future.set_exception(SessionExpiredError("the session is over"))
            return future

        def answer(result: Any, error: MetadataError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        if self.state is SessionState.SUSPENDED:
            late = ConnectionLossError("the metadata store is silent; the call was not sent")
            self._store.world.after(REQUEST_TIMEOUT_MS, lambda: answer(None, late), self._process)
            return future

        def at_store() -> None:
            result, error = None, None
            try:
                result = execute()
            except MetadataError as refused:
                error = refused
            if not self._store.loses_reply():
                self._back.send(lambda: answer(result, error))

        def on_timeout() -> None:
            answer(None, ConnectionLossError("the metadata store did not answer"))

        self._there.send(at_store)
        self._store.world.after(REQUEST_TIMEOUT_MS, on_timeout, self._process)
        return future
