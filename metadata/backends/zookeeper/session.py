"""The client's session with ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import KazooException, NoWatcherError
from kazoo.exceptions import NoNodeError as KazooNoNodeError
from kazoo.protocol.serialization import CloseInstance
from typing_extensions import override

from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.metadata.backends.zookeeper import requests
from heliograph.metadata.backends.zookeeper.address import (
    RECONNECT_SECONDS_MIN,
    REQUESTS_IN_FLIGHT_MAX,
    RESUME_PAUSE_SECONDS,
    SERVER_BYTES_DEFAULT,
    WATCHES_MAX,
)
from heliograph.metadata.backends.zookeeper.connection import ZooKeeperConnection
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.session.call_queue import Call, CallQueue
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import CLOSE_SECONDS_MAX, SILENCE_SHARE
from heliograph.metadata.session.reconnector import ReconnectingSession, Reconnector
from heliograph.metadata.session.session import QueuedSession
from heliograph.metadata.session.standing_watches import StandingWatch, StandingWatches
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import EventType, SessionState, Stat, Watcher, WatchEvent
from heliograph.metadata.znode import ROOT, parent_of


class ZooKeeperWatches(StandingWatches[StandingWatch]):
    """All watches of one session, and which of them are set on the server.

    ZooKeeper keeps one watch per session, kind and path and reports events by path; their recipients are chosen here.
    Up to 3.8 a server keeps one *mode* per session and path: a one-shot watch set on the very path of a recursive one
    turns that into a one-shot too. So while there is a recursive watch on a path, no other watch is set there on the
    server, and the one-shot watches of that path are told of its events, which include all that they wait for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recursive: Counter[str] = Counter()  # paths on which a recursive watch stands, or was just asked for

    def is_recursive(self, path: str) -> bool:
        """Return whether there is a recursive watch on exactly this path."""
        return self._recursive[path] > 0

    def expect_recursive(self, path: str) -> None:
        """Note that a recursive watch on the path is being requested."""
        self._recursive[path] += 1

    def forget_recursive(self, path: str) -> bool:
        """Undo one ``expect_recursive``. Return whether it was the last of its path."""
        assert self._recursive[path] > 0, "a recursive watch was asked for"
        self._recursive[path] -= 1
        if self._recursive[path] == 0:
            del self._recursive[path]
            return True
        return False

    def recipients(self, event: WatchEvent) -> list[tuple[StandingWatch, WatchEvent]]:
        """Return the watches that match an event of the server, each with the event to deliver."""
        told = [(watch, event) for watch in self.matching(event)]
        if event.type in (EventType.CREATED, EventType.DELETED) and event.path != ROOT:
            parent = parent_of(event.path)
            if self.is_recursive(parent):
                child_event = WatchEvent(EventType.CHILD, parent)
                told += [(watch, child_event) for watch in self.matching(child_event)]
        return told

    @override
    def clear(self) -> None:
        super().clear()
        self._recursive.clear()


Hook = Callable[[Any, BaseException | None], None]


class ZooKeeperRequest(Call):
    """One request. ``make`` builds it when it is sent; ``hook`` is called with the reply before the waiter resumes."""

    __slots__ = ("hook", "make", "size", "what")

    def __init__(
        self, what: str, make: Callable[[], Any], size: int, hook: Hook | None, future: asyncio.Future[Any] | None
    ) -> None:
        super().__init__(future)
        self.what = what
        self.make = make
        self.size = size
        self.hook = hook


class ZooKeeperSession(QueuedSession[ZooKeeperRequest], ReconnectingSession):
    """A session. Made by ``open``; every method is called on the loop that opened it.

    Args:
        endpoints: ``host:port`` of each server.
        auth: scheme and credential of each identity to present.
        client_id: session id and password of a session to take over, instead of beginning one.
        is_movable: the session is given up when its connection breaks, instead of being resumed: another client may
            have taken it over, and would lose it to us.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        timeout_ms: int,
        auth: Sequence[tuple[str, str]],
        *,
        is_movable: bool = False,
        client_id: tuple[int, bytes] | None = None,
    ) -> None:
        super().__init__(timeout_ms, CallQueue(REQUESTS_IN_FLIGHT_MAX))
        self._auth = auth
        self._is_movable = is_movable
        self._watches = ZooKeeperWatches()
        self._reconnector = Reconnector(self, endpoints)
        self._attempt_seconds = 0.0
        self._endpoint = ""  # of the latest connection
        self._connection: ZooKeeperConnection | None = None
        self._is_attached = False  # the session is known to the server at the other end of the connection
        self._watching: asyncio.Future[None] = self._loop.create_future()  # all watches were set again, or it is over
        self._zxid = 0  # of the newest change that earlier connections told of
        self._removals = 0  # of watches with the server that were sent
        self.clock.session_id, self.password = client_id or (0, b"")

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        timeout_ms: int,
        connect_ms: int,
        auth: Sequence[tuple[str, str]],
        *,
        is_movable: bool = False,
        client_id: tuple[int, bytes] | None = None,
    ) -> ZooKeeperSession:
        """Begin a new session, or take over the session of ``client_id``.

        Raises:
            ConnectionLossError: no session within ``connect_ms``; lists each endpoint with what happened there.
            NotPermittedError: the credentials are refused.
            SessionExpiredError: the session to be taken over has ended, or its password is wrong.
        """
        session = cls(endpoints, timeout_ms, auth, is_movable=is_movable, client_id=client_id)
        session._attempt_seconds = connect_ms / 1000 / (2 * len(endpoints))
        deadline = now() + connect_ms / 1000
        try:
            await session._reconnector.attach_until(lambda: deadline)
            session.clock.check()
        except BaseException:
            session.lose()
            raise
        session._start_tasks(session._reconnector.run(), session._heartbeat.run())
        return session

    @property
    @override
    def is_attached(self) -> bool:
        return self._is_attached

    @property
    @override
    def attempt_seconds(self) -> float:
        return self._attempt_seconds

    @property
    def watches(self) -> int:
        return len(self._watches)

    async def call(self, what: str, make: Callable[[], Any], *, size: int = 0, hook: Hook | None = None) -> Any:
        """Send a request and wait for its answer as kazoo decodes it. Requests are sent in the order of these calls.

        Args:
            what: the path, for error messages.
            size: its approximate number of bytes.
            hook: called with the reply before any later message of the server is handled.

        Raises:
            ConnectionLossError: there was no connection to send it on, or no answer came.
            SessionExpiredError: the session is over; the request was not sent or did nothing.
            HeliographError: as the server answered.
        """
        self.clock.check()
        return await self._ask(ZooKeeperRequest(what, make, size, hook, self._loop.create_future()))

    async def watched(self, kind: WatchKind, path: str, watcher: Watcher, *, with_value: bool = False) -> Any:
        """Read a node and leave a one-shot watch if that succeeds. Return the answer."""
        self._check_room()
        removals = 0  # when the request was sent

        def make() -> Any:
            nonlocal removals
            removals = self._removals
            is_set = not self._watches.is_recursive(path)
            return requests.get(path, watched=is_set) if with_value else requests.read(kind, path, watched=is_set)

        def hook(answer: Any, error: BaseException | None) -> None:
            if error is None:
                watch = self._watches.add(StandingWatch(kind, path, watcher))
                watch.arm(_stat_in(answer))
                if removals != self._removals:  # a removal has passed it by
                    self._set_again([watch], lambda: None)

        return await self.call(path, make, hook=hook)

    async def watch(self, path: str, watcher: Watcher) -> StandingWatch:
        """Set a recursive watch; ``unwatch`` removes it."""
        self._check_room()
        watch = StandingWatch(WatchKind.RECURSIVE, path, watcher)
        asked = False

        def make() -> Any:
            nonlocal asked
            asked = True
            self._watches.expect_recursive(path)
            return requests.KazooAddWatch(path)

        def hook(_: Any, error: BaseException | None) -> None:
            if error is None:
                self._watches.add(watch).arm(None)

        try:
            await self.call(path, make, hook=hook)
        except BaseException:
            if watch.is_armed:
                self.unwatch(watch)
            elif asked and not self.clock.is_lost:
                self._drop_recursive(path)
            raise
        return watch

    def unwatch(self, watch: StandingWatch) -> None:
        """Remove a recursive watch: its watcher is not called after this returns."""
        if self._watches.remove(watch):
            self._drop_recursive(watch.path)

    @override
    async def attach(self, endpoint: str, seconds: float) -> None:
        assert self._connection is None, "one connection at a time"
        connection = self._connection = ZooKeeperConnection(self._on_event, self._on_disconnected)
        self._endpoint, asked_at = endpoint, now()
        timeout_ms, known = round(self.clock.timeout * 1000), (self.clock.session_id, self.password)
        granted = await connection.open(
            endpoint, seconds, lambda: connection.begin(timeout_ms, *known, self._zxid, self._auth)
        )
        if granted is None:
            raise self.clock.over
        if self._connection is not connection:
            raise ConnectionLossError("the connection was lost as the session was granted")
        self.clock.timeout = granted.time_out / 1000
        self.clock.session_id, self.password = granted.session_id, granted.passwd
        self._attempt_seconds = max(self.clock.timeout * SILENCE_SHARE, RECONNECT_SECONDS_MIN)
        self.clock.confirm(asked_at)
        self._heartbeat.begin()
        self._is_attached = True
        watching = self._watching = self._loop.create_future()
        self._set_again(list(self._watches), self._all_stand)
        await watching  # behind the watchers of what was missed, in the queue of the loop
        if self._connection is connection and not self.clock.is_lost:
            self.clock.turn(SessionState.CONNECTED)
            self._pump()

    @override
    def is_final(self, error: HeliographError) -> bool:
        return not isinstance(error, ConnectionLossError)

    def _all_stand(self) -> None:
        if not self._watching.done():
            self._watching.set_result(None)

    def _on_disconnected(self, connection: ZooKeeperConnection) -> None:
        if connection is not self._connection:
            return
        was_attached = self._is_attached
        self._connection, self._is_attached = None, False
        self._zxid = max(self._zxid, connection.zxid)  # a connection that was refused knows of nothing
        self._all_stand()
        if self.clock.state is SessionState.CONNECTED:
            self.clock.turn(SessionState.SUSPENDED)
        if was_attached and self._is_movable:
            self.lose()
        elif was_attached:
            # A client that ends the session takes the connection away first: at once we would take the session back.
            lost = self._reconnector.connection_lost
            self._loop.call_later(RESUME_PAUSE_SECONDS, lost, self._endpoint, "the connection was lost")

    def _on_event(self, number: int, path: str) -> None:
        self._heartbeat.heard()
        if (kind := requests.EVENTS.get(number)) is not None:
            self._tell(self._watches.recipients(WatchEvent(kind, path)))

    def _on_reply(self, call: ZooKeeperRequest, value: Any, error: BaseException | None) -> None:
        self._heartbeat.heard()
        request = self._calls.answered(call)
        if request is None:
            return
        if request.hook is not None and not request.is_over:
            request.hook(value, error)
        failure = None if error is None else self._failure_of(request, error)
        if not isinstance(failure, ConnectionLossError | SessionExpiredError):
            self.clock.confirm(request.sent_at)
        if failure is not None:
            request.fail(failure)
        else:
            request.answer(value)
        self._pump()

    @override
    def ping(self) -> None:
        self._tell_server(requests.read(WatchKind.DATA, "/", watched=False))

    @override
    def drop(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    @staticmethod
    def _failure_of(call: ZooKeeperRequest, error: BaseException) -> HeliographError:
        failure = requests.translated(error, call.what)
        if isinstance(failure, ConnectionLossError) and call.size > SERVER_BYTES_DEFAULT:
            hint = f"(a request of {call.size} bytes: is the server's jute.maxbuffer below that?)"
            return ConnectionLossError(f"{failure} {hint}")
        return failure

    def _check_room(self) -> None:
        if len(self._watches) >= WATCHES_MAX:  # I15
            raise BadRequestError("too many watches", field="watcher", limit=f"{WATCHES_MAX} watches of one session")

    @override
    def _send(self, call: ZooKeeperRequest) -> None:
        self._calls.sent(call, call)
        assert self._connection is not None, "calls are sent while there is a connection"
        self._connection.submit(call.make(), partial(self._on_reply, call))

    def _tell_server(self, request: Any, hook: Hook | None = None) -> None:
        """Send a request on behalf of the session, ahead of every waiting call."""
        self._send(ZooKeeperRequest(getattr(request, "path", "/"), lambda: request, 0, hook, None))

    def _set_again(self, watches: Sequence[StandingWatch], then: Callable[[], object]) -> None:
        """Set watches on the server again, tell those that missed an event, and call ``then`` when all are set."""
        groups: dict[tuple[WatchKind, str], list[StandingWatch]] = {}
        for watch in watches:
            groups.setdefault((watch.kind, watch.path), []).append(watch)
        # Recursive watches first: the other watches of their paths are not set with the server.
        ordered = deque(sorted(groups.items(), key=lambda item: item[0][0] is not WatchKind.RECURSIVE))
        connection, under_way = self._connection, 0

        def advance() -> None:
            nonlocal under_way
            while ordered and (self._calls.has_room or not under_way):  # the answer to one sends the next
                (kind, path), group = ordered.popleft()
                is_set = kind is WatchKind.RECURSIVE or not self._watches.is_recursive(path)
                under_way += 1
                self._tell_server(
                    requests.read(kind, path, watched=is_set),
                    lambda answer, error, group=group: settled(group, answer, error),  # type: ignore[misc]
                )
            if not ordered and not under_way:
                then()

        def settled(group: Sequence[StandingWatch], answer: Any, error: BaseException | None) -> None:
            nonlocal under_way
            under_way -= 1
            if connection is not self._connection or self.clock.is_lost:
                return
            if error is not None and not isinstance(error, KazooNoNodeError):
                self.drop()  # the watches of this connection are not complete
                return
            self._tell_missed(group, None if error is not None else _stat_in(answer))
            advance()

        advance()

    def _tell_missed(self, watches: Sequence[StandingWatch], stat: Stat | None) -> None:
        missed = [(watch, watch.missed(stat)) for watch in watches]
        self._tell([(watch, WatchEvent(kind, watch.path)) for watch, kind in missed if kind is not None])

    def _drop_recursive(self, path: str) -> None:
        if not self._watches.forget_recursive(path) or not self.is_attached:
            return
        self._removals += 1
        self._tell_server(requests.RemoveWatches(path), self._on_removed)
        # The server has removed the one-shot watches of this path too.
        self._set_again([watch for watch in self._watches if watch.path == path], lambda: None)

    def _on_removed(self, _: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, NoWatcherError):
            self.drop()  # a new connection has only the watches that are set again on it

    def _tell(self, told: Sequence[tuple[StandingWatch, WatchEvent]]) -> None:
        for watch, event in told:
            # In the queue of the loop, behind the waiters of the answers that came before this event.
            self._loop.call_soon(self._watches.deliver, watch, event)

    @override
    def _on_lost(self) -> None:
        self._watches.clear()
        self._calls.fail_in_flight(ConnectionLossError("the session ended; the outcome of the call is unknown"))
        self._calls.fail_waiting(self.clock.over)

    @override
    async def _end_at_store(self, state: SessionState) -> None:
        if self._connection is not None and self._is_attached:
            with contextlib.suppress(TimeoutError, KazooException):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._connection.ask(CloseInstance)


def _stat_in(answer: Any) -> Stat | None:
    """Return the stat in the answer to a read; None if there is no node."""
    if answer is None or answer is True:
        return None
    return requests.stat_of(answer[1] if isinstance(answer[0], bytes | list | type(None)) else answer)
