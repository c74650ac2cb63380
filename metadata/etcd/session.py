"""A session: a lease, one connection at a time, made again when it breaks, until the session is LOST."""

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
from metadata.etcd.keeper import Keeper
from metadata.etcd.keys import Keys
from metadata.etcd.limits import ATTEMPT_SECONDS_MIN, CALL_SECONDS_MAX
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
from metadata.session_clock import SessionClock, now
from metadata.session_limits import (
    ANSWER_SECONDS_MAX,
    CALL_WAIT_SECONDS_MAX,
    CLOSE_SECONDS_MAX,
    PINGS_PER_TIMEOUT,
    RECONNECT_PAUSE_MS,
    RECONNECT_PAUSE_MS_MAX,
    SILENCE_SHARE,
    TICK_SECONDS_MAX,
)
from metadata.store import SessionState
from metadata.znode import ROOT


class Session:
    """Made by ``open``; every method is called on the loop that opened it."""

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self.requests = Requests(etcd_api(), Keys(address.prefix))
        self.feed = Feed(self.requests, self.lose, self.give_up)
        self.clock = SessionClock(0.0, self.lose)
        self.password = secrets.token_hex(16)
        self.record = SeenSession()  # ours, as it was seen last
        self.on_lost: Callable[[SessionExpiredError], None] = lambda _: None
        self._loop = asyncio.get_running_loop()
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
            await session._begin(max(1, -(-timeout_ms // 1000)), deadline)
        except BaseException:
            session._drop()
            raise
        clock = session.clock
        session._keeper = Keeper(
            address, session._endpoint, session.id, clock.timeout, clock.confirm, session._on_over_in_thread
        )
        session._become_connected()
        session._tasks = [
            session._loop.create_task(session._keep_connected()),
            session._loop.create_task(session._tick_forever()),
            session._loop.create_task(session._probe_forever()),
        ]
        return session

    @property
    def id(self) -> int:
        """Of the lease."""
        return self.clock.session_id

    @property
    def key(self) -> bytes:
        """Of the session's record."""
        return self.requests.keys.session(self.id)

    async def until_connected(self, began_at: float, tried_since: float) -> Connection:
        """A connection, for a call that began, and was first sent, at these times.

        Raises:
            ConnectionLossError: none in time.
            SessionExpiredError.
        """
        while True:
            if self.clock.state is SessionState.LOST:
                raise self.clock.over
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
        if self.clock.announced is SessionState.CONNECTED:
            self._suspended_at = now()
            self.clock.turn(SessionState.SUSPENDED)
        self._disconnected.set()

    def lose(self) -> None:
        """The session is over, by the clock or because etcd says so."""
        if self.clock.is_lost:
            return
        self._announce_lost()
        self._drop()
        self._stop_tasks()

    async def close(self) -> None:
        """End the session; etcd hears of it if it can be reached now, else the lease runs out. Idempotent."""
        connection = self._connection
        if self.clock.state is SessionState.LOST:
            self.lose()
            return
        self._announce_lost()  # the owner hears LOST before etcd can drop the ephemerals (I13)
        self._stop_tasks()
        if connection is not None:
            with contextlib.suppress(HeliographError):
                await connection.revoke(self.id, CLOSE_SECONDS_MAX)
        self._drop()

    @property
    def _attempt_seconds(self) -> float:
        return min(CALL_SECONDS_MAX, max(self.clock.timeout * SILENCE_SHARE, ATTEMPT_SECONDS_MIN))

    async def _begin(self, timeout_seconds: int, deadline: float) -> None:
        """Connect to the first endpoint that answers and get a lease."""
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
                        await self._begin_at(endpoint, timeout_seconds)
                        return
                except TimeoutError:
                    failures[endpoint] = f"no answer in {seconds:.1f} s"
                except ConnectionLossError as error:
                    failures[endpoint] = str(error)
                self._drop()
            await asyncio.sleep(random.uniform(0.5, 1) * pause_ms / 1000)
            pause_ms = min(pause_ms * 2, RECONNECT_PAUSE_MS_MAX)

    async def _begin_at(self, endpoint: str, timeout_seconds: int) -> None:
        connection = self._connection = Connection(self.address, endpoint)
        await connection.log_in()
        await self._lay_out(connection)
        asked_at = now()
        self.clock.session_id, granted = await connection.grant(timeout_seconds)
        self.clock.timeout = float(granted)
        record = SessionRecord(0, self.password)
        put = self.requests.put(self.key, encode_session(self.key, record), self.id)
        answer = await connection.transact(self.requests.transaction([], [put]))
        self.record = SeenSession(answer.header.revision, record)
        await self.feed.attach(connection, self.id, answer.header.revision)
        self.clock.confirm(asked_at)

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
            raise self.clock.over
        kv = answer.kvs[0]
        self.record = SeenSession(kv.mod_revision, decode_session(kv.key, kv.value))
        return int(answer.header.revision)

    async def _probe_forever(self) -> None:
        """Ask the connection for a sign of life; the lease has one of its own."""
        while True:
            await asyncio.sleep(self.clock.timeout / PINGS_PER_TIMEOUT)
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
        clock = self.clock
        tick = min(TICK_SECONDS_MAX, clock.timeout / PINGS_PER_TIMEOUT / 2)
        while True:
            self._keeper.loop_seen_at = current = now()
            if current >= clock.lost_at:
                self.lose()
                return
            silent = current - max(clock.confirmed_at, self._connected_at)
            if silent > clock.timeout * SILENCE_SHARE and self._connected.is_set() and self._connection is not None:
                self.give_up(self._connection, ConnectionLossError("etcd does not renew the lease"))
            await asyncio.sleep(max(0.0, min(tick, clock.lost_at - current)))

    def _become_connected(self) -> None:
        self._connected_at = now()
        self._connected.set()
        self.clock.turn(SessionState.CONNECTED)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._connected.clear()
        self.feed.detach()
        if connection is not None:
            connection.close()

    def _announce_lost(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        self.clock.turn(SessionState.LOST)
        self.feed.close()
        self._connected.set()  # who waits for a connection finds the session LOST
        self.on_lost(self.clock.over)

    def _stop_tasks(self) -> None:
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _on_over_in_thread(self) -> None:
        tell_loop(self._loop, self.lose)
