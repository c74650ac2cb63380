"""The store inside one process, for tests: every session on one tree, nothing durable, no time passing.

Calls take effect at once and in call order; each then yields to the loop once, as a call over a network would.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from functools import partial

from heliograph.errors import BadRequestError
from metadata.errors import ConnectionLossError, SessionExpiredError
from metadata.session_store import SingleWrites
from metadata.store import Operation, SessionListener, SessionState, Stat, Watch, Watcher, WatchEvent
from metadata.tree import Result, Transaction, ZnodeTree
from metadata.watches import WatchEntry, WatchKind, WatchTable
from metadata.znode import check_path


class MemoryServer:
    """What the sessions of one name share. All of them must live on the same event loop."""

    _named: dict[str, MemoryServer] = {}  # noqa: RUF012 - one registry for the life of the process

    def __init__(self) -> None:
        self._tree = ZnodeTree()
        self._watches: WatchTable[tuple[MemoryStore, Watcher]] = WatchTable()
        self._stores: dict[int, MemoryStore] = {}
        self._session_ids = itertools.count(1)

    @classmethod
    def named(cls, name: str) -> MemoryServer:
        """The server of that name, the same one for every caller in this process."""
        return cls._named.setdefault(name, cls())

    def open_session(self, timeout_ms: int = 10_000) -> MemoryStore:
        """A new session; ``timeout_ms`` is only kept, since no time passes here."""
        session_id = next(self._session_ids)
        self._tree.open_session(session_id, f"p{session_id}", timeout_ms, 0)
        store = self._stores[session_id] = MemoryStore(self, session_id)
        return store

    def expire_session(self, session_id: int) -> None:
        """End a session as if its time had run out; nothing happens if it is over already."""
        if session_id not in self._tree.sessions:
            return
        store = self._stores.pop(session_id)
        store._lose()
        self._publish(self._tree.end_session(session_id, _wall_ms()))

    def suspend_session(self, session_id: int) -> None:
        """Cut a session off: SUSPENDED, its calls fail unsent, its ephemerals stand, until resumed or expired."""
        self._stores[session_id]._suspend()

    def resume_session(self, session_id: int) -> None:
        """Undo ``suspend_session``: what one-shot watches missed is told first."""
        self._stores[session_id]._resume()

    def end_session(self, token: str) -> None:
        """What ``MetadataStore.end_session`` does."""
        number, _, password = token.partition(":")
        if not number.isdigit() or not password:
            raise BadRequestError("a session token looks like 'id:password'", field="token")
        session = self._tree.sessions.get(int(number))
        if session is None:
            return
        if session.password != password:
            raise BadRequestError("the token's password is not this session's", field="token")
        self.expire_session(session.session_id)

    def apply(self, session_id: int, operations: Sequence[Operation]) -> list[Result]:
        """Run a transaction and deliver its events."""
        transaction = self._tree.apply(session_id, operations, _wall_ms())
        self._publish(transaction)
        return transaction.results

    def _publish(self, transaction: Transaction) -> None:
        for event in transaction.events:
            for entry in self._watches.fire(event):
                store, watcher = entry.owner
                store._deliver(entry, watcher, event)


class MemoryStore(SingleWrites):
    """One session on a MemoryServer; a MetadataStore."""

    def __init__(self, server: MemoryServer, session_id: int) -> None:
        self._server = server
        self._session_id = session_id
        self._timeout_ms = server._tree.sessions[session_id].timeout_ms
        self._state = SessionState.CONNECTED
        self._listeners: list[SessionListener] = []
        self._entries: set[WatchEntry[tuple[MemoryStore, Watcher]]] = set()
        self._missed: list[tuple[WatchEntry[tuple[MemoryStore, Watcher]], Watcher, WatchEvent]] = []

    @property
    def session_id(self) -> int:
        """See MetadataStore."""
        return self._session_id

    @property
    def session_token(self) -> str:
        """See MetadataStore."""
        return f"{self._session_id}:p{self._session_id}"

    @property
    def session_timeout_ms(self) -> int:
        """See MetadataStore."""
        return self._timeout_ms

    @property
    def state(self) -> SessionState:
        """See MetadataStore."""
        return self._state

    def add_session_listener(self, listener: SessionListener) -> None:
        """See MetadataStore."""
        self._listeners.append(listener)

    def remove_session_listener(self, listener: SessionListener) -> None:
        """See MetadataStore."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """See MetadataStore."""
        self._check()
        node = self._server._tree.node(path)
        answer = node.value, node.stat()
        self._watch(WatchKind.DATA, path, watcher)
        await asyncio.sleep(0)
        return answer

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """See MetadataStore."""
        self._check()
        node = self._server._tree.find(path)
        stat = node.stat() if node else None
        self._watch(WatchKind.DATA, path, watcher)
        await asyncio.sleep(0)
        return stat

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """See MetadataStore."""
        self._check()
        names = self._server._tree.children(path)
        self._watch(WatchKind.CHILD, path, watcher)
        await asyncio.sleep(0)
        return names

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """See MetadataStore."""
        self._check()
        results = self._server.apply(self._session_id, operations)
        await asyncio.sleep(0)
        return results

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """See MetadataStore."""
        self._check()
        check_path(path)
        entry = self._watch(WatchKind.RECURSIVE, path, watcher)
        await asyncio.sleep(0)
        assert entry is not None, "a watcher was given"
        return _MemoryWatch(self, entry)

    async def sync(self, path: str = "/") -> None:
        """See MetadataStore."""
        self._check()
        check_path(path)
        await asyncio.sleep(0)

    async def end_session(self, token: str) -> None:
        """See MetadataStore."""
        self._check()
        self._server.end_session(token)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """See MetadataStore."""
        self._server.expire_session(self._session_id)

    def _check(self) -> None:
        if self._state is SessionState.LOST:
            raise SessionExpiredError(f"session {self._session_id:#x} is over")
        if self._state is SessionState.SUSPENDED:
            raise ConnectionLossError("cut off from the store; the call was not sent")

    def _watch(
        self, kind: WatchKind, path: str, watcher: Watcher | None
    ) -> WatchEntry[tuple[MemoryStore, Watcher]] | None:
        if watcher is None:
            return None
        entry = self._server._watches.add(kind, path, (self, watcher))
        self._entries.add(entry)
        return entry

    def _cancel(self, entry: WatchEntry[tuple[MemoryStore, Watcher]]) -> None:
        self._entries.discard(entry)
        self._server._watches.remove(entry)

    def _deliver(self, entry: WatchEntry[tuple[MemoryStore, Watcher]], watcher: Watcher, event: WatchEvent) -> None:
        if entry not in self._entries:
            return
        if self._state is SessionState.SUSPENDED:
            if entry.kind is not WatchKind.RECURSIVE:  # those miss what nobody could tell them
                self._missed.append((entry, watcher, event))
            return
        if entry.kind is not WatchKind.RECURSIVE:
            self._entries.discard(entry)
        _call(partial(watcher, event))

    def _suspend(self) -> None:
        assert self._state is SessionState.CONNECTED, "only a session that is connected can be cut off"
        self._set_state(SessionState.SUSPENDED)

    def _resume(self) -> None:
        assert self._state is SessionState.SUSPENDED, "the session was cut off"
        self._state = SessionState.CONNECTED
        missed, self._missed = self._missed, []
        for entry, watcher, event in missed:
            self._deliver(entry, watcher, event)
        self._tell_state()

    def _lose(self) -> None:
        # I13: the session's owner hears of the loss before anybody can see that its ephemerals are gone.
        self._set_state(SessionState.LOST)
        for entry in list(self._entries):
            self._cancel(entry)

    def _set_state(self, state: SessionState) -> None:
        self._state = state
        self._tell_state()

    def _tell_state(self) -> None:
        for listener in list(self._listeners):
            _call(partial(listener, self._state))


class _MemoryWatch:
    def __init__(self, store: MemoryStore, entry: WatchEntry[tuple[MemoryStore, Watcher]]) -> None:
        self._store = store
        self._entry = entry

    def cancel(self) -> None:
        """See Watch."""
        self._store._cancel(self._entry)


def _call(callback: partial[None]) -> None:
    """Run a user's callback; its failure is the loop's to report, not the writer's to suffer."""
    try:
        callback()
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler({"message": "a metadata callback failed", "exception": error})


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
