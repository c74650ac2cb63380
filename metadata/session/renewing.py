"""A store that outlives its sessions: when one is over, another is opened in its place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, TypeVar

from typing_extensions import override

from heliograph.base.backoff import Backoff
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.session.clock import SessionClock, run_callback
from heliograph.metadata.session.limits import CALL_WAIT_SECONDS_MAX
from heliograph.metadata.session.standing_watches import WatchHandle
from heliograph.metadata.session.store import SessionStore
from heliograph.metadata.store import (
    CHILDREN_PAGE_MAX,
    EventType,
    MetadataStore,
    Operation,
    SessionState,
    Stat,
    Watch,
    Watcher,
    WatchEvent,
)

RENEWAL_PAUSE_MS = 100  # after a session could not be opened; doubles
RENEWAL_PAUSE_MS_MAX = 2_000

T = TypeVar("T")
Connect = Callable[[], Awaitable[MetadataStore]]

log = logging.getLogger(__name__)


class _OneShot:
    """A one-shot watch, which is told at most once over all sessions in which it was set."""

    def __init__(self, path: str, missed: EventType, watcher: Watcher, standing: dict[_OneShot, None]) -> None:
        self.missed = WatchEvent(missed, path)  # what it is told when its session is over
        self._watcher = watcher
        self._standing = standing

    def tell(self, event: WatchEvent) -> None:
        """Call the watcher, unless it was called or the watch was not set."""
        if self in self._standing:
            del self._standing[self]
            run_callback("watcher", self._watcher, event)


class _Recursive:
    """A standing recursive watch and its form in the present session."""

    def __init__(self, path: str, watcher: Watcher) -> None:
        self.path = path
        self.watcher = watcher
        self.set: Watch | None = None


class RenewingStore(SessionStore):
    """A store that is SUSPENDED, not LOST, when its session is over, and CONNECTED again with a new one.

    By ``session_id`` a listener of CONNECTED sees whether the session is new: the ephemerals of earlier sessions are
    gone then. Recursive watches are set in the new session. Each one-shot watch is told CHANGED, or CHILD, before the
    session is CONNECTED again, whether its node changed or not. A call during which a session ends raises
    ConnectionLossError. The store is LOST once it is closed.
    """

    def __init__(self, store: MetadataStore, connect: Connect) -> None:
        """
        Args:
            store: the first session, CONNECTED.
            connect: opens another session.
        """
        super().__init__(SessionClock(store.session_timeout_ms / 1000))
        self._connect = connect
        self.on_ended: Callable[[float], None] = lambda seconds: None  # told how long each call took
        self._store = store
        self._connected = asyncio.Event()
        self._one_shot: dict[_OneShot, None] = {}  # an ordered set
        self._recursive: dict[_Recursive, None] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._use(store)

    @property
    @override
    def session_token(self) -> str:
        return self._store.session_token

    @property
    @override
    def silent_seconds(self) -> float:
        return self._store.silent_seconds

    @property
    @override
    def is_in_doubt(self) -> bool:
        return self._clock.is_lost or self._store.is_in_doubt

    @override
    def get(self, path: str, watcher: Watcher | None = None) -> Coroutine[Any, Any, tuple[bytes | None, Stat]]:
        if watcher is None:
            return self._call(lambda store: store.get(path))
        return self._watched(lambda store, tell: store.get(path, tell), path, EventType.CHANGED, watcher)

    @override
    def exists(self, path: str, watcher: Watcher | None = None) -> Coroutine[Any, Any, Stat | None]:
        if watcher is None:
            return self._call(lambda store: store.exists(path))
        return self._watched(lambda store, tell: store.exists(path, tell), path, EventType.CHANGED, watcher)

    @override
    def children(self, path: str, watcher: Watcher | None = None) -> Coroutine[Any, Any, list[str]]:
        if watcher is None:
            return self._call(lambda store: store.children(path))
        return self._watched(lambda store, tell: store.children(path, tell), path, EventType.CHILD, watcher)

    @override
    def children_from(
        self, path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX
    ) -> Coroutine[Any, Any, list[str]]:
        return self._call(lambda store: store.children_from(path, start, limit))

    @override
    def multi(self, operations: Sequence[Operation]) -> Coroutine[Any, Any, list[str | Stat | None]]:
        return self._call(lambda store: store.multi(operations))

    @override
    async def watch(self, path: str, watcher: Watcher) -> Watch:
        standing = _Recursive(path, watcher)
        standing.set = await self._call(lambda store: store.watch(path, watcher))
        self._recursive[standing] = None
        return WatchHandle(lambda: self._cancel(standing))

    @override
    async def sync(self, path: str = "/") -> None:
        await self._call(lambda store: store.sync(path))

    @override
    async def reapable(self, count_max: int) -> list[str]:
        return await self._call(lambda store: store.reapable(count_max))

    @override
    async def end_session(self, token: str) -> None:
        await self._call(lambda store: store.end_session(token))

    @override
    async def close(self) -> None:
        await self._end()
        await self._store.close()

    @override
    async def detach(self) -> None:
        await self._end()
        await self._store.detach()

    async def _end(self) -> None:
        renewing, self._renewing = self._renewing, None
        if not self._clock.is_lost:
            self._clock.turn(SessionState.LOST)
        self._connected.set()  # who waits for a session finds the store LOST
        self._connected.clear()
        self._one_shot.clear()
        self._recursive.clear()
        await end_task(renewing)

    async def _watched(
        self,
        run: Callable[[MetadataStore, Watcher], Awaitable[T]],
        path: str,
        missed: EventType,
        watcher: Watcher,
    ) -> T:
        one_shot = _OneShot(path, missed, watcher, self._one_shot)
        self._one_shot[one_shot] = None
        try:
            return await self._call(lambda store: run(store, one_shot.tell))
        except BaseException:
            self._one_shot.pop(one_shot, None)
            raise

    async def _call(self, run: Callable[[MetadataStore], Awaitable[T]]) -> T:
        if not self._connected.is_set():
            await self._until_connected()
        store, began = self._store, perf_counter()
        try:
            return await run(store)
        except SessionExpiredError as error:
            self._clock.check()
            raise ConnectionLossError(f"the metadata session {store.session_id:#x} ended meanwhile") from error
        finally:
            self.on_ended(perf_counter() - began)

    async def _until_connected(self) -> None:
        self._clock.check()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALL_WAIT_SECONDS_MAX):
                await self._connected.wait()
        self._clock.check()
        if not self._connected.is_set():
            raise ConnectionLossError(
                f"the metadata store has not answered for {self.silent_seconds:.0f} s; the call was not sent"
            )

    def _cancel(self, standing: _Recursive) -> None:
        if standing in self._recursive:
            del self._recursive[standing]
            if standing.set is not None:
                standing.set.cancel()

    def _use(self, store: MetadataStore) -> None:
        """Continue in a session in which the watches are set."""
        self._store = store
        self._clock.session_id = store.session_id
        self._clock.timeout = store.session_timeout_ms / 1000
        store.add_session_listener(lambda state: self._on_state(store, state))
        self._on_state(store, store.state)

    def _on_state(self, store: MetadataStore, state: SessionState) -> None:
        if store is not self._store or self._clock.is_lost:
            return
        if state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        if state is not SessionState.LOST:
            self._clock.turn(state)
            return
        log.warning("the metadata session %#x is over: opening another one", store.session_id)
        self._clock.turn(SessionState.SUSPENDED)
        assert self._renewing is None or self._renewing.done(), "one session at a time is replaced"
        self._renewing = asyncio.get_running_loop().create_task(self._renew(store), name="metadata session")

    async def _renew(self, over: MetadataStore) -> None:
        pauses = Backoff(RENEWAL_PAUSE_MS, RENEWAL_PAUSE_MS_MAX)
        is_told = False
        await over.close()
        while True:
            store: MetadataStore | None = None
            try:
                store = await self._connect()
                await self._set_watches(store)
            except HeliographError as error:
                if not is_told:
                    log.warning("no metadata session can be opened now: %s", error)
                is_told = True
                if store is not None:
                    await store.close()
                await asyncio.sleep(pauses.pause())
                continue
            except BaseException:
                if store is not None:
                    await store.close()
                raise
            break
        for one_shot in list(self._one_shot):
            one_shot.tell(one_shot.missed)
        log.warning("the metadata session %#x follows %#x", store.session_id, over.session_id)
        self._renewing = None
        self._use(store)

    async def _set_watches(self, store: MetadataStore) -> None:
        """Set the recursive watches in a new session, including watches that are added meanwhile."""
        done: set[_Recursive] = set()
        while left := [standing for standing in self._recursive if standing not in done]:
            for standing in left:
                standing.set = await store.watch(standing.path, standing.watcher)
                done.add(standing)
                if standing not in self._recursive:  # it was cancelled meanwhile
                    standing.set.cancel()
