"""The store inside one process, for tests: all sessions share one tree, nothing is durable, and there are no timeouts.

Calls take effect at once and in call order; each then yields to the loop once, as a call over a network would.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.session.clock import SessionClock, now
from heliograph.metadata.session.standing_watches import StandingWatch, StandingWatches, WatchHandle
from heliograph.metadata.session.store import SessionStore, parse_token
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import CHILDREN_PAGE_MAX, Operation, SessionState, Stat, Watch, Watcher, WatchEvent
from heliograph.metadata.tree import Result, TreeTransaction, ZnodeTree
from heliograph.metadata.znode import check_path


@dataclass(eq=False, slots=True)
class MemoryWatch(StandingWatch):
    """A watch of one of the server's sessions."""

    store: MemoryStore = field(kw_only=True)


class MemoryServer:
    """The tree that the sessions of one name share. All of them must run on the same event loop."""

    _named: dict[str, MemoryServer] = {}  # noqa: RUF012 - one registry for the life of the process

    def __init__(self) -> None:
        self._tree = ZnodeTree()
        self._watches: StandingWatches[MemoryWatch] = StandingWatches()
        self._stores: dict[int, MemoryStore] = {}
        self._session_ids = itertools.count(1)
        self._abandoned: dict[int, asyncio.TimerHandle] = {}  # by session: the end of one without a client

    @classmethod
    def named(cls, name: str) -> MemoryServer:
        """Return the server of a name, the same one for every caller in this process."""
        return cls._named.setdefault(name, cls())

    def open_session(self, timeout_ms: int = 10_000, token: str | None = None) -> MemoryStore:
        """Begin a session, or take over the session of a token (``connect_store``).

        ``timeout_ms`` only counts for a session that is detached, since no time passes here.

        Raises:
            SessionExpiredError, BadRequestError: as ``connect_store``.
        """
        if token:
            return self._take_over(*parse_token(token))
        session_id = next(self._session_ids)
        self._tree.open_session(session_id, secrets.token_hex(16), timeout_ms, 0)
        store = self._stores[session_id] = MemoryStore(self, session_id)
        return store

    def detach(self, store: MemoryStore) -> None:
        """Leave a session without a client. It ends at its timeout, unless a client takes it over."""
        session_id = store.session_id
        if self._stores.get(session_id) is not store:
            return
        del self._stores[session_id]
        store._lose()
        timeout_ms = self._tree.sessions[session_id].timeout_ms
        loop = asyncio.get_running_loop()
        self._abandoned[session_id] = loop.call_later(timeout_ms / 1000, self.expire_session, session_id)

    def close(self, store: MemoryStore) -> None:
        """End the session of a store, unless it was taken over."""
        if self._stores.get(store.session_id) is store:
            self.expire_session(store.session_id)

    def _take_over(self, session_id: int, password: str) -> MemoryStore:
        session = self._tree.sessions.get(session_id)
        if session is None or session.password != password:
            raise SessionExpiredError(f"session {session_id:#x} is over")
        abandoned = self._abandoned.pop(session_id, None)
        if abandoned is not None:
            abandoned.cancel()
        earlier = self._stores.pop(session_id, None)
        if earlier is not None:
            earlier._lose()
        store = self._stores[session_id] = MemoryStore(self, session_id)
        return store

    def expire_session(self, session_id: int) -> None:
        """End a session as if its time had run out. Nothing happens if it is over already."""
        if session_id not in self._tree.sessions:
            return
        self._abandoned.pop(session_id, None)
        store = self._stores.pop(session_id, None)
        if store is not None:
            store._lose()
        self._publish(self._tree.end_session(session_id, wall_ms()))

    def suspend_session(self, session_id: int) -> None:
        """Make a session SUSPENDED until it is resumed or expired: its calls fail unsent, its ephemerals remain."""
        self._stores[session_id]._suspend()

    def resume_session(self, session_id: int) -> None:
        """Undo ``suspend_session``. One-shot watches are first told of the events that they missed."""
        self._stores[session_id]._resume()

    def end_session(self, token: str) -> None:
        """End a session by its token, as ``MetadataStore.end_session`` does."""
        session_id, password = parse_token(token)
        session = self._tree.sessions.get(session_id)
        if session is None:
            return
        if session.password != password:
            raise BadRequestError("the token's password is not this session's", field="token")
        self.expire_session(session.session_id)

    def apply(self, session_id: int, operations: Sequence[Operation]) -> list[Result]:
        """Apply a transaction and deliver its events."""
        transaction = self._tree.apply(session_id, operations, wall_ms())
        assert len(transaction.results) == len(operations), "one result for each operation"
        self._publish(transaction)
        return transaction.results

    def _publish(self, transaction: TreeTransaction) -> None:
        for event in transaction.events:
            for watch in self._watches.matching(event):
                watch.store._deliver(watch, event)


class MemoryStore(SessionStore):
    """One session on a MemoryServer; a MetadataStore. It is silent only while it is suspended."""

    def __init__(self, server: MemoryServer, session_id: int) -> None:
        super().__init__(SessionClock(server._tree.sessions[session_id].timeout_ms / 1000))
        self._server = server
        self._password = server._tree.sessions[session_id].password
        self._missed: list[tuple[MemoryWatch, WatchEvent]] = []  # while SUSPENDED, in order
        self._clock.session_id = session_id
        self._clock.turn(SessionState.CONNECTED)

    @property
    @override
    def session_token(self) -> str:
        return f"{self.session_id}:{self._password}"

    @override
    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:
        self._check()
        node = self._server._tree.node(path)
        answer = node.value, node.stat()
        self._watch(WatchKind.DATA, path, watcher)
        await asyncio.sleep(0)
        return answer

    @override
    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        self._check()
        node = self._server._tree.find(path)
        stat = node.stat() if node else None
        self._watch(WatchKind.DATA, path, watcher)
        await asyncio.sleep(0)
        return stat

    @override
    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        self._check()
        names = self._server._tree.children(path)
        self._watch(WatchKind.CHILD, path, watcher)
        await asyncio.sleep(0)
        return names

    @override
    async def children_from(self, path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        self._check()
        names = self._server._tree.children_from(path, start, limit)
        await asyncio.sleep(0)
        return names

    @override
    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        self._check()
        results = self._server.apply(self.session_id, operations)
        await asyncio.sleep(0)
        return results

    @override
    async def watch(self, path: str, watcher: Watcher) -> Watch:
        self._check()
        check_path(path)
        watch = self._watch(WatchKind.RECURSIVE, path, watcher)
        await asyncio.sleep(0)
        assert watch is not None, "a watcher was given"
        return WatchHandle(lambda: self._server._watches.remove(watch))

    @override
    async def sync(self, path: str = "/") -> None:
        self._check()
        check_path(path)
        await asyncio.sleep(0)

    @override
    async def reapable(self, count_max: int) -> list[str]:
        self._check()
        paths = self._server._tree.reapable(wall_ms(), count_max)
        await asyncio.sleep(0)
        return paths

    @override
    async def end_session(self, token: str) -> None:
        self._check()
        self._server.end_session(token)
        await asyncio.sleep(0)

    @override
    async def close(self) -> None:
        self._server.close(self)

    @override
    async def detach(self) -> None:
        self._server.detach(self)

    def _check(self) -> None:
        self._clock.check()
        if self._clock.state is SessionState.SUSPENDED:
            raise ConnectionLossError("cut off from the store; the call was not sent")

    def _watch(self, kind: WatchKind, path: str, watcher: Watcher | None) -> MemoryWatch | None:
        if watcher is None:
            return None
        watch = MemoryWatch(kind, path, watcher, store=self)
        watch.arm(None)  # what it misses is kept as events
        return self._server._watches.add(watch)

    def _deliver(self, watch: MemoryWatch, event: WatchEvent) -> None:
        if self._clock.state is SessionState.CONNECTED:
            self._server._watches.deliver(watch, event)
        elif watch.kind is not WatchKind.RECURSIVE:  # recursive watches miss what happens while SUSPENDED
            self._missed.append((watch, event))

    def _suspend(self) -> None:
        self._clock.confirm(now())
        self._clock.turn(SessionState.SUSPENDED)

    def _resume(self) -> None:
        assert self._clock.state is SessionState.SUSPENDED, "the session was cut off"
        missed, self._missed = self._missed, []
        for watch, event in missed:
            self._server._watches.deliver(watch, event)
        self._clock.confirm(math.inf)
        self._clock.turn(SessionState.CONNECTED)

    def _lose(self) -> None:
        # I13: the session's owner is told of the loss before anybody can see that its ephemerals are gone.
        self._clock.turn(SessionState.LOST)
        for watch in self._server._watches:
            if watch.store is self:
                self._server._watches.remove(watch)
