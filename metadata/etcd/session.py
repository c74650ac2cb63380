"""A session: a lease, one connection at a time, made again when it breaks, until the session is LOST.

The times and the reason why LOST is safe are in ``metadata/etcd/limits.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable

from heliograph.errors import HeliographError
from metadata.errors import ConnectionLossError, SessionExpiredError
from metadata.etcd.address import EtcdAddress
from metadata.etcd.connection import Connection, tell_loop
from metadata.etcd.feed import Feed
from metadata.etcd.keeper import Keeper, now
from metadata.etcd.keys import Keys
from metadata.etcd.limits import (
    ANSWER_SECONDS_MAX,
    ATTEMPT_SECONDS_MIN,
    CALL_SECONDS_MAX,
    CALL_WAIT_SECONDS_MAX,
    CLOSE_SECONDS_MAX,
    LOST_SHARE,
    RECONNECT_PAUSE_MS,
    RECONNECT_PAUSE_MS_MAX,
    RENEWALS_PER_TIMEOUT,
    SILENCE_SHARE,
    TICK_SECONDS_MAX,
)
from metadata.etcd.modules import etcd_api
from metadata.etcd.record import (
    NodeHead,
    SessionRecord,
    check_layout,
    decode_session,
    encode_layout,
    encode_node,
    encode_session,
)
from metadata.etcd.transaction import Requests, SeenSession
from metadata.store import SessionListener, SessionState
from metadata.znode import ROOT


class Session:
    """Made by ``open``; every method is called on the loop that opened it."""

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self.requests = Requests(etcd_api(), Keys(address.prefix))
        self.feed = Feed(self.requests, self.lose, self.give_up)
        self.id = 0
        self.password = secrets.token_hex(16)
        self.timeout = 0.0  # seconds
        self.record = SeenSession()  # ours, as it was seen last
        self.on_lost: Callable[[SessionExpiredError], None] = lambda _: None
        self._loop = asyncio.get_running_loop()
        self._state = SessionState.SUSPENDED
        self._listeners: list[SessionListener] = []
        self._endpoint = 0
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._suspended_at = 0.0
        self._connected_at = 0.0
        self._failure = "nothing was tried yet"
        self._keeper: Keeper | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, address: EtcdAddress, timeout_ms: int, connect_ms: int) -> Session:
        """Begin a session.

        Raises:
            ConnectionLossError: no endpoint could be reached in time; names each and its failure.
            NotPermittedError: the user or the password is refused.
            RecordError: the prefix holds what this version cannot read.
            InvalidConfigError: a file of the URL cannot be read.
        """
        await asyncio.to_thread(etcd_api)  # the first time it takes half a second
        session = cls(address)
        deadline = now() + connect_ms / 1000
        try:
            granted_at = await session._begin(max(1, -(-timeout_ms // 1000)), deadline)
        except BaseException:
            session._drop()
            raise
        session._keeper = Keeper(
            address, session._endpoint, session.id, session.timeout, granted_at, session._on_over_in_thread
        )
        session._become_connected()
        session._tasks = [
            session._loop.create_task(session._keep_connected()),
            session._loop.create_task(session._tick_forever()),
            session._loop.create_task(session._probe_forever()),
        ]
        return session

    @property
    def state(self) -> SessionState:
        """The state now; exact, also when the loop was held up and no timer could run (I13)."""
        if self._state is not SessionState.LOST and now() >= self._lost_at:
            self._loop.call_soon(self.lose)
            return SessionState.LOST
        return self._state

    @property
    def over(self) -> SessionExpiredError:
        """What calls of a session that is over raise."""
        return SessionExpiredError(f"metadata session {self.id:#x} is over")

    @property
    def key(self) -> bytes:
        """Of the session's record."""
        return self.requests.keys.session(self.id)

    def add_listener(self, listener: SessionListener) -> None:
        """Have ``listener`` called with each new state."""
        self._listeners.append(listener)

    def remove_listener(self, listener: SessionListener) -> None:
        """Not have it called any more; nothing happens if it was not added."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    async def until_connected(self, began_at: float, tried_since: float) -> Connection:
        """A connection, for a call that began, and was first sent, at these times.

        Raises:
            ConnectionLossError: none in time.
            SessionExpiredError.
        """
        while True:
            if self.state is SessionState.LOST:
                raise self.over
            deadline = tried_since + ANSWER_SECONDS_MAX
            if self._connection is None or not self._connected.is_set():
                deadline = min(deadline, max(began_at, self._suspended_at) + CALL_WAIT_SECONDS_MAX)
            remaining = deadline - now()
            if remaining <= 0:
                raise ConnectionLossError(f"no connection to etcd: {self._failure}")
            if self._connection is not None and self._connected.is_set():
                return self._connection
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._connected.wait()

    def give_up(self, connection: Connection, error: HeliographError) -> None:
        """A connection is of no use any more: look for another."""
        if connection is not self._connection:
            return
        self._failure = str(error)
        self._drop()
        if self._state is SessionState.CONNECTED:
            self._suspended_at = now()
            self._set_state(SessionState.SUSPENDED)
        self._disconnected.set()

    def lose(self) -> None:
        """The session is over, by the clock or because etcd says so."""
        if self._state is SessionState.LOST:
            return
        self._announce_lost()
        self._drop()
        self._stop_tasks()

    async def close(self) -> None:
        """End the session; etcd hears of it if it can be reached now, else the lease runs out. Idempotent."""
        connection = self._connection
        if self.state is SessionState.LOST:
            self.lose()
            return
        self._announce_lost()  # the owner hears LOST before etcd can drop the ephemerals (I13)
        self._stop_tasks()
        if connection is not None:
            with contextlib.suppress(HeliographError):
                await connection.revoke(self.id, CLOSE_SECONDS_MAX)
        self._drop()

    @property
    def _lost_at(self) -> float:
        assert self._keeper is not None, "a session that is open has a lease"
        return self._keeper.confirmed_at + self.timeout * LOST_SHARE

    @property
    def _attempt_seconds(self) -> float:
        return min(CALL_SECONDS_MAX, max(self.timeout * SILENCE_SHARE, ATTEMPT_SECONDS_MIN))

    async def _begin(self, timeout_seconds: int, deadline: float) -> float:
        """Connect to the first endpoint that answers and get a lease; when it was asked for."""
        failures = dict.fromkeys(self.address.endpoints, "not tried: no time was left")
        pause_ms = RECONNECT_PAUSE_MS
        while True:
            for number, endpoint in enumerate(self.address.endpoints):
                self._endpoint = number
                remaining = deadline - now()
                if remaining <= 0:
                    said = "; ".join(f"{name}: {why}" for name, why in failures.items())
                    raise ConnectionLossError(f"no endpoint of etcd can be reached: {said}", field="url")
                seconds = min(remaining, max(ATTEMPT_SECONDS_MIN, remaining / len(failures)))
                try:
                    async with asyncio.timeout(seconds):
                        return await self._begin_at(endpoint, timeout_seconds)
                except TimeoutError:
                    failures[endpoint] = f"no answer in {seconds:.1f} s"
                except ConnectionLossError as error:
                    failures[endpoint] = str(error)
                self._drop()
            await asyncio.sleep(random.uniform(0.5, 1) * pause_ms / 1000)
            pause_ms = min(pause_ms * 2, RECONNECT_PAUSE_MS_MAX)

    async def _begin_at(self, endpoint: str, timeout_seconds: int) -> float:
        connection = self._connection = Connection(self.address, endpoint)
        await connection.log_in()
        await self._lay_out(connection)
        granted_at = now()
        self.id, granted = await connection.grant(timeout_seconds)
        self.timeout = float(granted)
        record = SessionRecord(0, self.password)
        put = self.requests.put(self.key, encode_session(self.key, record), self.id)
        answer = await connection.transact(self.requests.transaction([], [put]))
        self.record = SeenSession(answer.header.revision, record)
        await self.feed.attach(connection, self.id, answer.header.revision)
        return granted_at

    async def _lay_out(self, connection: Connection) -> None:
        """Make the root of an empty prefix; see that this version can read what is there."""
        requests, keys = self.requests, self.requests.keys
        root = keys.node(ROOT)
        puts = [
            requests.put(keys.layout, encode_layout(keys.layout)),
            requests.put(root, encode_node(root, NodeHead(0, 0, 0, 0), b"")),
        ]
        request = requests.transaction([requests.unchanged(keys.layout, 0)], puts, [requests.get(keys.layout)])
        answer = await connection.transact(request)
        if not answer.succeeded:
            check_layout(keys.layout, answer.responses[0].response_range.kvs[0].value)

    async def _keep_connected(self) -> None:
        pause_ms = RECONNECT_PAUSE_MS
        while True:
            await self._disconnected.wait()
            self._endpoint = (self._endpoint + 1) % len(self.address.endpoints)
            endpoint = self.address.endpoints[self._endpoint]
            try:
                async with asyncio.timeout(self._attempt_seconds):
                    await self._attach(Connection(self.address, endpoint))
                pause_ms = RECONNECT_PAUSE_MS
            except SessionExpiredError:
                self.lose()
                return
            except (HeliographError, TimeoutError) as error:
                # Also what is refused now may be allowed later: the session's clock ends this.
                self._failure = str(error) or f"etcd at {endpoint} does not answer"
                self._drop()
                await asyncio.sleep(random.uniform(0.5, 1) * pause_ms / 1000)
                if self._endpoint == 0:
                    pause_ms = min(pause_ms * 2, RECONNECT_PAUSE_MS_MAX)

    async def _attach(self, connection: Connection) -> None:
        self._disconnected.clear()
        self._connection = connection
        try:
            await connection.log_in(self._attempt_seconds)
            revision = await self._look_for_session(connection)
            await self.feed.attach(connection, self.id, revision)
        except BaseException:
            self._disconnected.set()
            raise
        if self._connection is connection:
            self._become_connected()

    async def _look_for_session(self, connection: Connection) -> int:
        """See that the session stands; the revision of etcd then."""
        answer = await connection.read(connection.api.RangeRequest(key=self.key), self._attempt_seconds)
        if not answer.kvs:
            raise self.over
        kv = answer.kvs[0]
        self.record = SeenSession(kv.mod_revision, decode_session(kv.key, kv.value))
        return int(answer.header.revision)

    async def _probe_forever(self) -> None:
        """Ask the connection for a sign of life; the lease has one of its own."""
        while True:
            await asyncio.sleep(self.timeout / RENEWALS_PER_TIMEOUT)
            connection = self._connection
            if connection is None or not self._connected.is_set():
                continue
            request = connection.api.RangeRequest(key=self.key, keys_only=True)
            try:
                answer = await connection.read(request, self._attempt_seconds)
            except HeliographError as error:
                self.give_up(connection, error)
                continue
            if not answer.kvs:
                self.lose()
                return

    async def _tick_forever(self) -> None:
        assert self._keeper is not None, "a session that is open has a lease"
        tick = min(TICK_SECONDS_MAX, self.timeout / RENEWALS_PER_TIMEOUT / 2)
        while True:
            self._keeper.loop_seen_at = current = now()
            if current >= self._lost_at:
                self.lose()
                return
            silent = current - max(self._keeper.confirmed_at, self._connected_at)
            if silent > self.timeout * SILENCE_SHARE and self._connected.is_set() and self._connection is not None:
                self.give_up(self._connection, ConnectionLossError("etcd does not renew the lease"))
            await asyncio.sleep(max(0.0, min(tick, self._lost_at - current)))

    def _become_connected(self) -> None:
        self._connected_at = now()
        self._connected.set()
        self._set_state(SessionState.CONNECTED)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._connected.clear()
        self.feed.detach()
        if connection is not None:
            connection.close()

    def _announce_lost(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        self._set_state(SessionState.LOST)
        self.feed.close()
        self._connected.set()  # who waits for a connection finds the session LOST
        self.on_lost(self.over)

    def _stop_tasks(self) -> None:
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _on_over_in_thread(self) -> None:
        tell_loop(self._loop, self.lose)

    def _set_state(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a session listener failed", "exception": error})
