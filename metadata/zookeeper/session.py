"""One session with ZooKeeper: when calls go out, when it is SUSPENDED, and when it is LOST by our own clock.

The times and the reason why LOST is safe are in ``metadata/zookeeper/limits.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import NoNodeError as KazooNoNodeError
from kazoo.exceptions import NoWatcherError

from heliograph.errors import BadRequestError, HeliographError, NotPermittedError
from metadata.errors import ConnectionLossError, SessionExpiredError
from metadata.store import SessionListener, SessionState, Stat, Watcher, WatchEvent
from metadata.watches import WatchKind
from metadata.zookeeper import requests
from metadata.zookeeper.bridge import Bridge, Endpoint, now
from metadata.zookeeper.limits import (
    ANSWER_MS_MAX,
    ATTEMPT_SECONDS_MIN,
    CALL_WAIT_MS_MAX,
    LOST_SHARE,
    PINGS_PER_TIMEOUT,
    REQUESTS_IN_FLIGHT_MAX,
    REQUESTS_WAITING_MAX,
    SERVER_BYTES_DEFAULT,
    SILENCE_SHARE,
    TICK_MS_MAX,
    WATCHES_MAX,
)
from metadata.zookeeper.watches import Entry, StandingWatches

AUTH_FAILED = "AUTH_FAILED"  # kazoo's name for refused credentials

Hook = Callable[[Any, BaseException | None], None]


class Call:
    """One request. ``make`` builds it at the moment of sending; ``hook`` sees the reply before the future's waiter."""

    __slots__ = ("began_at", "future", "hook", "make", "sent_at", "size", "what")

    def __init__(
        self, what: str, make: Callable[[], Any], size: int, hook: Hook | None, future: asyncio.Future[Any] | None
    ) -> None:
        self.what = what
        self.make = make
        self.size = size
        self.hook = hook
        self.future = future
        self.began_at = self.sent_at = now()

    def fail(self, error: HeliographError) -> None:
        """Raise an error at the caller."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Session:
    """A session. Made by ``open``; every method is called on the loop that opened it."""

    def __init__(self, endpoints: Sequence[Endpoint], timeout_ms: int, auth: Sequence[tuple[str, str]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoints = endpoints
        self._timeout = timeout_ms / 1000
        self._bridge = Bridge(endpoints, timeout_ms, self, auth=auth)
        self._state = SessionState.SUSPENDED
        self._listeners: list[SessionListener] = []
        self._waiting: deque[Call] = deque()
        self._in_flight: dict[Call, None] = {}
        self._watches = StandingWatches()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._is_attached = False
        self._attachments = 0  # counts connections, so that what belongs to an earlier one is recognised
        self._confirmed_at = float("inf")  # when the latest request that was answered had been sent
        self._heard_at = 0.0
        self._pinged_at = 0.0
        self._ticker: asyncio.Task[None] | None = None
        self.session_id = 0
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
            session._abandon()
            raise ConnectionLossError(session._bridge_failures()) from None
        except BaseException:
            session._abandon()
            raise
        session._ticker = session._loop.create_task(session._tick_forever())
        return session

    @property
    def state(self) -> SessionState:
        """The state now; exact, also when the loop was held up and no timer could run (I13)."""
        if self._state is not SessionState.LOST and now() >= self._lost_at:
            self._loop.call_soon(self._lose)
            return SessionState.LOST
        return self._state

    @property
    def timeout_ms(self) -> int:
        """As granted by the server."""
        return round(self._timeout * 1000)

    @property
    def watches(self) -> int:
        """How many watches stand."""
        return len(self._watches)

    def add_listener(self, listener: SessionListener) -> None:
        """Have ``listener`` called with each new state."""
        self._listeners.append(listener)

    def remove_listener(self, listener: SessionListener) -> None:
        """Not have it called any more; nothing happens if it was not added."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

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
        if self.state is SessionState.LOST:
            raise self._over()
        if len(self._waiting) >= REQUESTS_WAITING_MAX:  # I15
            raise ConnectionLossError(f"{REQUESTS_WAITING_MAX} metadata calls are waiting already", field="calls")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(Call(what, make, size, hook, future))
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
            elif asked and self._state is not SessionState.LOST:
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
        if self.state is SessionState.LOST:
            return
        self._timeout = timeout_ms / 1000
        self.session_id, self.password = session_id, password
        self._bridge.attempt_seconds = max(self._timeout * SILENCE_SHARE, ATTEMPT_SECONDS_MIN)
        self._confirmed_at = began
        self._heard_at = self._pinged_at = now()
        self._is_attached = True
        self._attachments += 1
        attachment = self._attachments
        # In the queue of the loop, behind the watchers of what was missed.
        self._set_again(list(self._watches), lambda: self._loop.call_soon(self._resume, attachment))

    def on_disconnected(self) -> None:
        """See Listener."""
        self._is_attached = False
        if self._state is SessionState.CONNECTED:
            self._set_state(SessionState.SUSPENDED)

    def on_over(self, reason: str) -> None:
        """See Listener."""
        if not self._opened.done():
            refused = reason == AUTH_FAILED
            self._opened.set_exception(
                NotPermittedError("ZooKeeper refuses the credentials") if refused else self._over()
            )
        self._lose()

    def on_event(self, number: int, path: str) -> None:
        """See Listener."""
        self._heard_at = now()
        if (kind := requests.EVENTS.get(number)) is not None:
            self._tell(self._watches.fire(WatchEvent(kind, path)))

    def on_reply(self, tag: Any, value: Any, error: BaseException | None) -> None:
        """See Listener."""
        call: Call = tag
        self._heard_at = now()
        if self._state is not SessionState.LOST and self._heard_at >= self._lost_at:
            self._lose()  # the answer came too late to prove anything (I13)
        if call not in self._in_flight:
            return
        del self._in_flight[call]
        is_wanted = call.future is None or not call.future.done()
        if call.hook is not None and is_wanted:
            call.hook(value, error)
        failure = None if error is None else self._failure_of(call, error)
        if not isinstance(failure, ConnectionLossError | SessionExpiredError):
            self._confirmed_at = max(self._confirmed_at, call.sent_at)
        if failure is not None:
            call.fail(failure)
        elif call.future is not None and is_wanted:
            call.future.set_result(value)
        self._pump()

    @property
    def _lost_at(self) -> float:
        return self._confirmed_at + self._timeout * LOST_SHARE

    @staticmethod
    def _failure_of(call: Call, error: BaseException) -> HeliographError:
        failure = requests.translated(error, call.what)
        if isinstance(failure, ConnectionLossError) and call.size > SERVER_BYTES_DEFAULT:
            hint = f"(a request of {call.size} bytes: is the server's jute.maxbuffer below that?)"
            return ConnectionLossError(f"{failure} {hint}")
        return failure

    def _check_room(self) -> None:
        if len(self._watches) >= WATCHES_MAX:  # I15
            raise BadRequestError("too many watches", field="watcher", limit=f"{WATCHES_MAX} watches of one session")

    def _pump(self) -> None:
        while self._state is SessionState.CONNECTED and self._waiting and len(self._in_flight) < REQUESTS_IN_FLIGHT_MAX:
            call = self._waiting.popleft()
            if call.future is None or not call.future.done():
                self._send(call)

    def _send(self, call: Call) -> None:
        call.sent_at = now()
        self._in_flight[call] = None
        self._bridge.submit(call.make(), call)

    def _tell_server(self, request: Any, hook: Hook | None = None) -> None:
        """A request of our own, ahead of every waiting call."""
        self._send(Call(getattr(request, "path", "/"), lambda: request, 0, hook, None))

    def _resume(self, attachment: int) -> None:
        if attachment != self._attachments or not self._is_attached or self._state is SessionState.LOST:
            return
        self._set_state(SessionState.CONNECTED)
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
            while ordered and len(self._in_flight) < REQUESTS_IN_FLIGHT_MAX:
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
            if attachment != self._attachments or not self._is_attached or self._state is SessionState.LOST:
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
        if not self._watches.forget_recursive(path) or not self._is_attached:
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

    async def _tick_forever(self) -> None:
        tick = min(TICK_MS_MAX / 1000, self._timeout / PINGS_PER_TIMEOUT / 2)
        last = now()
        while self._state is not SessionState.LOST:
            await asyncio.sleep(max(0.0, min(tick, self._lost_at - last)))
            moment = now()
            if moment - last > 2 * tick:
                self._heard_at = moment  # we slept: what we did not hear may be waiting to be read
            last = moment
            self._tick(moment)

    def _tick(self, moment: float) -> None:
        if moment >= self._lost_at:
            self._lose()
            return
        while self._waiting and self._waiting[0].began_at < moment - CALL_WAIT_MS_MAX / 1000:
            self._waiting.popleft().fail(ConnectionLossError("no connection to ZooKeeper; the call was not sent"))
        if not self._is_attached:
            return
        oldest = next(iter(self._in_flight), None)
        if oldest is not None:
            silent = moment - max(self._heard_at, oldest.sent_at)
            if silent > self._timeout * SILENCE_SHARE or moment - oldest.sent_at > ANSWER_MS_MAX / 1000:
                self._bridge.drop()
                return
        if moment - self._pinged_at >= self._timeout / PINGS_PER_TIMEOUT:
            self._pinged_at = moment
            self._tell_server(requests.read(WatchKind.DATA, "/", watched=False))

    def _lose(self) -> None:
        if self._state is SessionState.LOST:
            return
        self._announce_lost()
        self._abandon()

    def _abandon(self) -> None:
        self._loop.run_in_executor(None, self._bridge.end)

    def _announce_lost(self) -> None:
        if self._state is SessionState.LOST:
            return
        self._set_state(SessionState.LOST)
        self._watches.clear()
        calls, self._in_flight = list(self._in_flight), {}
        for call in calls:
            call.fail(ConnectionLossError(f"{call.what}: the session ended; the outcome of the call is unknown"))
        while self._waiting:
            self._waiting.popleft().fail(self._over())

    def _set_state(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a session listener failed", "exception": error})

    def _bridge_failures(self) -> str:
        known = self._bridge.failures
        names = [f"{host}:{port}" for host, port in self._endpoints]
        return "no ZooKeeper can be reached: " + "; ".join(
            f"{name}: {known.get(name, 'no answer within the connect timeout')}" for name in names
        )

    def _over(self) -> SessionExpiredError:
        return SessionExpiredError(f"metadata session {self.session_id:#x} is over")


def _stat_in(answer: Any) -> Stat | None:
    """The stat in the answer to a read; None when the node is not there."""
    if answer is None or answer is True:
        return None
    return requests.stat_of(answer[1] if isinstance(answer[0], bytes | list | type(None)) else answer)
