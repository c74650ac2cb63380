"""One session with ZooKeeper: when calls go out, when it is SUSPENDED, and when it is LOST by our own clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import NoNodeError as KazooNoNodeError
from kazoo.exceptions import NoWatcherError

from heliograph.errors import BadRequestError, HeliographError, NotPermittedError
from metadata.call_queue import Call, CallQueue
from metadata.errors import ConnectionLossError, SessionExpiredError
from metadata.heartbeat import Heartbeat
from metadata.session_clock import SessionClock
from metadata.session_limits import SILENCE_SHARE
from metadata.store import SessionState, Stat, Watcher, WatchEvent
from metadata.watches import WatchKind
from metadata.zookeeper import requests
from metadata.zookeeper.bridge import Bridge, Endpoint
from metadata.zookeeper.limits import ATTEMPT_SECONDS_MIN, REQUESTS_IN_FLIGHT_MAX, SERVER_BYTES_DEFAULT, WATCHES_MAX
from metadata.zookeeper.watches import Entry, StandingWatches

AUTH_FAILED = "AUTH_FAILED"  # kazoo's name for refused credentials

Hook = Callable[[Any, BaseException | None], None]


class Request(Call):
    """One request. ``make`` builds it at the moment of sending; ``hook`` sees the reply before the future's waiter."""

    __slots__ = ("hook", "make", "size", "what")

    def __init__(
        self, what: str, make: Callable[[], Any], size: int, hook: Hook | None, future: asyncio.Future[Any] | None
    ) -> None:
        super().__init__(future)
        self.what = what
        self.make = make
        self.size = size
        self.hook = hook


class Session:
    """A session. Made by ``open``; every method is called on the loop that opened it."""

    def __init__(self, endpoints: Sequence[Endpoint], timeout_ms: int, auth: Sequence[tuple[str, str]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoints = endpoints
        self._bridge = Bridge(endpoints, timeout_ms, self, auth=auth)
        self._calls: CallQueue[Request] = CallQueue(REQUESTS_IN_FLIGHT_MAX)
        self._watches = StandingWatches()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._attachments = 0  # counts connections, so that what belongs to an earlier one is recognised
        self._ticker: asyncio.Task[None] | None = None
        self.clock = SessionClock(timeout_ms / 1000, self.lose)
        self._heartbeat = Heartbeat(self, self.clock, self._calls)
        self.is_attached = False
        self.password = b""

    @classmethod
    async def open(
        cls, endpoints: Sequence[Endpoint], timeout_ms: int, connect_ms: int, auth: Sequence[tuple[str, str]]
    ) -> Session:
        """Begin a new session.

        Raises:
            ConnectionLossError: no session within ``connect_ms``; lists each endpoint with what happened there.
            NotPermittedError: the credentials are refused.
        """
        session = cls(endpoints, timeout_ms, auth)
        session._bridge.attempt_seconds = connect_ms / 1000 / (2 * len(endpoints))
        try:
            session._bridge.start()
            async with asyncio.timeout(connect_ms / 1000):
                await session._opened
        except TimeoutError:
            session.lose()
            raise ConnectionLossError(session._bridge_failures()) from None
        except BaseException:
            session.lose()
            raise
        session._ticker = session._loop.create_task(session._heartbeat.run())
        return session

    @property
    def watches(self) -> int:
        """How many watches stand."""
        return len(self._watches)

    async def call(self, what: str, make: Callable[[], Any], *, size: int = 0, hook: Hook | None = None) -> Any:
        """Send a request and wait for kazoo's idea of its answer; requests are sent in the order of these calls.

        Args:
            what: the path that it is about, for error messages.
            size: about how many bytes it has.
            hook: called with the reply before anything that the server sent later is looked at.

        Raises:
            ConnectionLossError: not sent for want of a connection, or no answer came.
            SessionExpiredError: the session is over; the request was not sent or did nothing.
            HeliographError: as the server answered.
        """
        if self.clock.state is SessionState.LOST:
            raise self.clock.over
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.enqueue(Request(what, make, size, hook, future))
        self._pump()
        return await future

    async def watched(self, kind: WatchKind, path: str, watcher: Watcher, *, with_value: bool = False) -> Any:
        """A read that leaves a one-shot watch if it succeeds."""
        self._check_room()

        def make() -> Any:
            is_set = not self._watches.is_recursive(path)
            return requests.get(path, watched=is_set) if with_value else requests.read(kind, path, watched=is_set)

        def hook(answer: Any, error: BaseException | None) -> None:
            if error is None:
                self._watches.add(kind, path, watcher, _stat_in(answer))

        return await self.call(path, make, hook=hook)

    async def watch(self, path: str, watcher: Watcher) -> Entry:
        """Set a recursive watch; ``unwatch`` takes it away."""
        self._check_room()
        entries: list[Entry] = []
        asked = False

        def make() -> Any:
            nonlocal asked
            asked = True
            self._watches.expect_recursive(path)
            return requests.AddWatch(path)

        def hook(_: Any, error: BaseException | None) -> None:
            if error is None:
                entries.append(self._watches.add(WatchKind.RECURSIVE, path, watcher, None))

        try:
            await self.call(path, make, hook=hook)
        except BaseException:
            if entries:
                self.unwatch(entries[0])
            elif asked and not self.clock.is_lost:
                self._drop_recursive(path)
            raise
        return entries[0]

    def unwatch(self, entry: Entry) -> None:
        """Tell a recursive watch nothing more."""
        if self._watches.remove(entry):
            self._drop_recursive(entry.path)

    async def close(self) -> None:
        """End the session; the server hears of it if it can be reached now, else it will expire. Idempotent."""
        if self._ticker is not None:
            self._ticker.cancel()
        self._announce_lost()  # the owner hears LOST before the server can drop the ephemerals (I13)
        await asyncio.to_thread(self._bridge.end)
        if self._ticker is not None:
            await asyncio.wait([self._ticker])

    def on_connected(self, began: float, timeout_ms: int, session_id: int, password: bytes) -> None:
        """See Listener."""
        if self.clock.state is SessionState.LOST:
            return
        self.clock.timeout = timeout_ms / 1000
        self.clock.session_id, self.password = session_id, password
        self._bridge.attempt_seconds = max(self.clock.timeout * SILENCE_SHARE, ATTEMPT_SECONDS_MIN)
        self.clock.confirm(began)
        self._heartbeat.begin()
        self.is_attached = True
        self._attachments += 1
        attachment = self._attachments
        # In the queue of the loop, behind the watchers of what was missed.
        self._set_again(list(self._watches), lambda: self._loop.call_soon(self._resume, attachment))

    def on_disconnected(self) -> None:
        """See Listener."""
        self.is_attached = False
        if self.clock.announced is SessionState.CONNECTED:
            self.clock.turn(SessionState.SUSPENDED)

    def on_over(self, reason: str) -> None:
        """See Listener."""
        if not self._opened.done():
            refused = reason == AUTH_FAILED
            self._opened.set_exception(
                NotPermittedError("ZooKeeper refuses the credentials") if refused else self.clock.over
            )
        self.lose()

    def on_event(self, number: int, path: str) -> None:
        """See Listener."""
        self._heartbeat.heard()
        if (kind := requests.EVENTS.get(number)) is not None:
            self._tell(self._watches.fire(WatchEvent(kind, path)))

    def on_reply(self, tag: Any, value: Any, error: BaseException | None) -> None:
        """See Listener."""
        self._heartbeat.heard()
        request = self._calls.answered(tag)
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

    def ping(self) -> None:
        """See Patient."""
        self._tell_server(requests.read(WatchKind.DATA, "/", watched=False))

    def drop(self) -> None:
        """See Patient."""
        self._bridge.drop()

    def lose(self) -> None:
        """See Patient."""
        if not self.clock.is_lost:
            self._announce_lost()
            self._abandon()

    @staticmethod
    def _failure_of(call: Request, error: BaseException) -> HeliographError:
        failure = requests.translated(error, call.what)
        if isinstance(failure, ConnectionLossError) and call.size > SERVER_BYTES_DEFAULT:
            hint = f"(a request of {call.size} bytes: is the server's jute.maxbuffer below that?)"
            return ConnectionLossError(f"{failure} {hint}")
        return failure

    def _check_room(self) -> None:
        if len(self._watches) >= WATCHES_MAX:  # I15
            raise BadRequestError("too many watches", field="watcher", limit=f"{WATCHES_MAX} watches of one session")

    def _pump(self) -> None:
        while self.clock.announced is SessionState.CONNECTED and (request := self._calls.next_to_send()) is not None:
            self._send(request)

    def _send(self, request: Request) -> None:
        self._calls.sent(request, request)
        self._bridge.submit(request.make(), request)

    def _tell_server(self, request: Any, hook: Hook | None = None) -> None:
        """A request of our own, ahead of every waiting call."""
        self._send(Request(getattr(request, "path", "/"), lambda: request, 0, hook, None))

    def _resume(self, attachment: int) -> None:
        if attachment != self._attachments or not self.is_attached or self.clock.is_lost:
            return
        self.clock.turn(SessionState.CONNECTED)
        if not self._opened.done():
            self._opened.set_result(None)
        self._pump()

    def _set_again(self, entries: Sequence[Entry], then: Callable[[], object]) -> None:
        """Set watches again with the server, telling those that missed something, and go on when all stand."""
        groups: dict[tuple[WatchKind, str], list[Entry]] = {}
        for entry in entries:
            groups.setdefault((entry.kind, entry.path), []).append(entry)
        # The recursive ones first: what stands on their paths is not set with the server.
        ordered = deque(sorted(groups.items(), key=lambda item: item[0][0] is not WatchKind.RECURSIVE))
        attachment, under_way = self._attachments, 0

        def advance() -> None:
            nonlocal under_way
            while ordered and self._calls.has_room:
                (kind, path), group = ordered.popleft()
                is_set = kind is WatchKind.RECURSIVE or not self._watches.is_recursive(path)
                under_way += 1
                self._tell_server(
                    requests.read(kind, path, watched=is_set),
                    lambda answer, error, group=group: settled(group, answer, error),  # type: ignore[misc]
                )
            if not ordered and not under_way:
                then()

        def settled(group: Sequence[Entry], answer: Any, error: BaseException | None) -> None:
            nonlocal under_way
            under_way -= 1
            if attachment != self._attachments or not self.is_attached or self.clock.is_lost:
                return
            if error is not None and not isinstance(error, KazooNoNodeError):
                self._bridge.drop()  # watches that do not stand must not be taken to stand
                return
            self._tell_missed(group, None if error is not None else _stat_in(answer))
            advance()

        advance()

    def _tell_missed(self, entries: Sequence[Entry], stat: Stat | None) -> None:
        told = [(entry, event) for entry in entries if (event := self._watches.missed(entry, stat)) is not None]
        for entry, _ in told:
            self._watches.retire(entry)
        self._tell(told)

    def _drop_recursive(self, path: str) -> None:
        if not self._watches.forget_recursive(path) or not self.is_attached:
            return
        self._tell_server(requests.RemoveWatches(path), self._on_removed)
        # The server has just forgotten the one-shot ones of this path too, if it knew of them.
        self._set_again([entry for entry in self._watches if entry.path == path], lambda: None)

    def _on_removed(self, _: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, NoWatcherError):
            self._bridge.drop()  # a new connection has only the watches that are set again on it

    def _tell(self, told: Sequence[tuple[Entry, WatchEvent]]) -> None:
        if told:
            # In the queue of the loop, behind the waiters of the answers that came before this event.
            self._loop.call_soon(self._call_watchers, told)

    def _call_watchers(self, told: Sequence[tuple[Entry, WatchEvent]]) -> None:
        for entry, event in told:
            if entry.owner.is_cancelled:
                continue
            try:
                entry.owner.watcher(event)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a watcher failed", "exception": error})

    def _abandon(self) -> None:
        self._loop.run_in_executor(None, self._bridge.end)

    def _announce_lost(self) -> None:
        if self.clock.is_lost:
            return
        self.clock.turn(SessionState.LOST)
        self._watches.clear()
        self._calls.fail_in_flight(ConnectionLossError("the session ended; the outcome of the call is unknown"))
        self._calls.fail_waiting(self.clock.over)

    def _bridge_failures(self) -> str:
        known = self._bridge.failures
        names = [f"{host}:{port}" for host, port in self._endpoints]
        return "no ZooKeeper can be reached: " + "; ".join(
            f"{name}: {known.get(name, 'no answer within the connect timeout')}" for name in names
        )


def _stat_in(answer: Any) -> Stat | None:
    """The stat in the answer to a read; None when the node is not there."""
    if answer is None or answer is True:
        return None
    return requests.stat_of(answer[1] if isinstance(answer[0], bytes | list | type(None)) else answer)
