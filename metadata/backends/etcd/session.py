"""The client's session with etcd."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import secrets
from collections.abc import Callable

from typing_extensions import override

from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.etcd.lease_keeper import LeaseKeeper
from heliograph.metadata.backends.etcd.transactions.transaction import EtcdRequests, ObservedSession
from heliograph.metadata.backends.etcd.watching.watch_feed import WatchFeed
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection, tell_loop
from heliograph.metadata.backends.etcd.wire.keys import Keys
from heliograph.metadata.backends.etcd.wire.limits import CALL_SECONDS_MAX, CONFLICTS_MAX
from heliograph.metadata.backends.etcd.wire.modules import etcd_api
from heliograph.metadata.backends.etcd.wire.record import (
    NodeHead,
    SessionRecord,
    check_layout,
    decode_session,
    encode_layout,
    encode_node,
    encode_session,
)
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import (
    ANSWER_SECONDS_MAX,
    ATTEMPT_SECONDS_MIN,
    CALL_WAIT_SECONDS_MAX,
    CLOSE_SECONDS_MAX,
    PINGS_PER_TIMEOUT,
    SILENCE_SHARE,
    TICK_SECONDS_MAX,
)
from heliograph.metadata.session.reconnector import ReconnectingSession, Reconnector
from heliograph.metadata.store import SessionState
from heliograph.metadata.znode import ROOT

ENDINGS_MAX = 3  # attempts to end a session whose record changes meanwhile


class EtcdSession(ReconnectingSession):
    """A session: a lease, and one connection at a time. Made by ``open``; called on the loop that opened it."""

    def __init__(self, address: EtcdAddress, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.address = address
        self.requests = EtcdRequests(etcd_api(), Keys(address.prefix))
        self.feed = WatchFeed(self.requests, self.lose, self.give_up)
        self.password = secrets.token_hex(16)
        self.owner = ""  # our name as the owner of a session that was taken over
        self._takes_over = False
        self.record = ObservedSession()  # the session's record, as it was observed last
        self.on_lost: Callable[[SessionExpiredError], None] = lambda _: None
        self._connection: EtcdConnection | None = None
        self._connected = asyncio.Event()
        self._suspended_at = 0.0
        self._connected_at = 0.0
        self._lease_keeper: LeaseKeeper | None = None
        self._reconnector = Reconnector(self, address.endpoints)

    @classmethod
    async def open(
        cls, address: EtcdAddress, timeout_ms: int, connect_ms: int, known: tuple[int, str] | None = None
    ) -> EtcdSession:
        """Begin a session, or take over the session with the id and password in ``known``.

        Raises:
            ConnectionLossError: no endpoint could be reached in time; names each and its failure.
            NotPermittedError: the user or the password is refused.
            RecordError: the prefix holds data that this version cannot read.
            InvalidConfigError: a file of the URL cannot be read.
            SessionExpiredError: there is no session of that id and password.
        """
        await asyncio.to_thread(etcd_api)  # the first time it takes half a second
        session = cls(address, timeout_ms)
        if known is not None:
            session.clock.session_id, session.password = known
            session.owner, session._takes_over = secrets.token_hex(8), True
        deadline = now() + connect_ms / 1000
        try:
            await session._reconnector.attach_until(lambda: deadline)
        except BaseException:
            session.drop()
            raise
        clock = session.clock
        session._lease_keeper = LeaseKeeper(
            address, session._reconnector.number, session.id, clock.timeout, clock.confirm, session._on_lease_over
        )
        session._start_tasks(session._reconnector.run(), session._tick_forever(), session._probe_forever())
        return session

    @property
    def id(self) -> int:
        """The id of the lease, 0 before there is one."""
        return self.clock.session_id

    @property
    def key(self) -> bytes:
        return self.requests.keys.session(self.id)

    @property
    @override
    def attempt_seconds(self) -> float:
        if not self.id:
            return CALL_SECONDS_MAX
        return min(CALL_SECONDS_MAX, max(self.clock.timeout * SILENCE_SHARE, ATTEMPT_SECONDS_MIN))

    async def until_connected(self, began_at: float, tried_since: float) -> EtcdConnection:
        """Return a connection for a call; ``began_at`` and ``tried_since`` are when it began and was first sent.

        Raises:
            ConnectionLossError: none in time.
            SessionExpiredError.
        """
        while True:
            self.clock.check()
            deadline = tried_since + ANSWER_SECONDS_MAX
            if self._connection is None or not self._connected.is_set():
                deadline = min(deadline, max(began_at, self._suspended_at) + CALL_WAIT_SECONDS_MAX)
            remaining = deadline - now()
            if remaining <= 0:
                raise ConnectionLossError(f"no connection to etcd: {self._reconnector.failure}")
            if self._connection is not None and self._connected.is_set():
                return self._connection
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._connected.wait()

    def give_up(self, connection: EtcdConnection, error: HeliographError) -> None:
        """Replace a failed connection. Nothing happens if the session has another one already."""
        if connection is not self._connection:
            return
        self._reconnector.connection_lost(connection.endpoint, error)
        self.drop()
        if self.clock.state is SessionState.CONNECTED:
            self._suspended_at = now()
            self.clock.turn(SessionState.SUSPENDED)

    @override
    async def attach(self, endpoint: str, seconds: float) -> None:
        assert self._connection is None, "one connection at a time"
        connection = self._connection = EtcdConnection(self.address, endpoint)
        async with asyncio.timeout(seconds):
            await connection.log_in(seconds)
            if self._takes_over:
                revision = await self._take_over(connection, seconds)
            elif self.id:
                revision = await self._find_record(connection)
            else:
                revision = await self._begin(connection)
            await self.feed.attach(connection, self.id, revision)
        if self._connection is connection:
            assert self.record.mod_revision > 0, "the session's record was observed"
            self._connected_at = now()
            self._connected.set()
            self.clock.turn(SessionState.CONNECTED)

    @override
    def drop(self) -> None:
        connection, self._connection = self._connection, None
        self._connected.clear()
        self.feed.detach()
        if connection is not None:
            connection.close()

    @override
    def is_final(self, error: HeliographError) -> bool:
        if self._tasks:  # what an open session is refused now may be allowed later
            return isinstance(error, SessionExpiredError)
        return not isinstance(error, ConnectionLossError)

    @override
    async def _end_at_store(self, state: SessionState) -> None:
        connection = self._connection
        if connection is None:
            return
        with contextlib.suppress(HeliographError):
            for _ in range(ENDINGS_MAX):
                await self._find_record(connection)  # raises if another client has taken the session over
                # Without its record nobody can take it over any more.
                request = self.requests.transaction(
                    [self.requests.unchanged(self.key, self.record.mod_revision)], [self.requests.delete(self.key)]
                )
                if (await connection.transact(request)).succeeded:
                    await connection.revoke(self.id, CLOSE_SECONDS_MAX)
                    return

    @override
    def _on_lost(self) -> None:
        if self._lease_keeper is not None:
            self._lease_keeper.stop()
        self.feed.close()
        self._connected.set()  # who waits for a connection finds the session LOST
        self.on_lost(self.clock.over)

    async def _begin(self, connection: EtcdConnection) -> int:
        """Take a lease and write the session's record. Return the revision that wrote it."""
        assert not self.id, "a session begins once"
        await self._lay_out(connection)
        asked_at = now()
        lease_id, granted = await connection.grant(max(1, math.ceil(self.clock.timeout)))
        key, record = self.requests.keys.session(lease_id), SessionRecord(0, self.password)
        put = self.requests.put(key, encode_session(key, record), lease_id)
        answer = await connection.transact(self.requests.transaction([], [put]))
        revision = int(answer.header.revision)
        self.record = ObservedSession(revision, record)
        self.clock.session_id, self.clock.timeout = lease_id, float(granted)
        self.clock.confirm(asked_at)
        return revision

    async def _take_over(self, connection: EtcdConnection, seconds: float) -> int:
        """Become the owner of the session, and renew its lease. Return the revision that wrote the record.

        Raises:
            SessionExpiredError: there is no such session, or the password is wrong.
        """
        for _ in range(CONFLICTS_MAX):
            asked_at = now()
            remaining = await asyncio.to_thread(connection.renew_blocking, self.id, seconds)
            answer = await connection.read(connection.api.RangeRequest(key=self.key))
            if not answer.kvs or not remaining:
                raise self.clock.over
            found = decode_session(self.key, answer.kvs[0].value)
            if not hmac.compare_digest(found.password.encode(), self.password.encode()):
                raise self.clock.over
            record = SessionRecord(0, self.password, self.owner)
            request = self.requests.transaction(
                [self.requests.unchanged(self.key, answer.kvs[0].mod_revision)],
                [self.requests.put(self.key, encode_session(self.key, record), self.id)],
            )
            answer = await connection.transact(request)
            if answer.succeeded:
                revision = int(answer.header.revision)
                self.record = ObservedSession(revision, record)
                self.clock.timeout = float(remaining)
                self.clock.confirm(asked_at)
                self._takes_over = False
                return revision
        raise ConnectionLossError("another client uses the session without a pause")

    async def _lay_out(self, connection: EtcdConnection) -> None:
        """Create the root in an empty prefix; otherwise check that this version can read the data there."""
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

    async def _find_record(self, connection: EtcdConnection) -> int:
        """Read the session's record. Return the revision of etcd at which it was there.

        Raises:
            SessionExpiredError: it is gone, or another client has taken the session over.
        """
        answer = await connection.read(connection.api.RangeRequest(key=self.key), self.attempt_seconds)
        if not answer.kvs:
            raise self.clock.over
        kv = answer.kvs[0]
        assert kv.mod_revision >= self.record.mod_revision, "revisions only grow"
        record = decode_session(kv.key, kv.value)
        if record.owner != self.owner:
            raise self.clock.over
        self.record = ObservedSession(kv.mod_revision, record)
        return int(answer.header.revision)

    async def _probe_forever(self) -> None:
        """Check at intervals that the connection is alive; the lease is renewed separately."""
        while True:
            await asyncio.sleep(self.clock.timeout / PINGS_PER_TIMEOUT)
            connection = self._connection
            if connection is None or not self._connected.is_set():
                continue
            request = connection.api.RangeRequest(key=self.key)
            try:
                answer = await connection.read(request, self.attempt_seconds)
            except HeliographError as error:
                self.give_up(connection, error)
                continue
            if not answer.kvs or decode_session(self.key, answer.kvs[0].value).owner != self.owner:
                self.lose()
                return

    async def _tick_forever(self) -> None:
        assert self._lease_keeper is not None, "a session that is open has a lease"
        clock = self.clock
        tick = min(TICK_SECONDS_MAX, clock.timeout / PINGS_PER_TIMEOUT / 2)
        while True:
            self._lease_keeper.loop_alive_at = current = now()
            silent = current - max(clock.confirmed_at, self._connected_at)
            if silent > clock.timeout * SILENCE_SHARE and self._connected.is_set() and self._connection is not None:
                self.give_up(self._connection, ConnectionLossError("etcd does not renew the lease"))
            await asyncio.sleep(tick)

    def _on_lease_over(self) -> None:
        tell_loop(self._loop, self.lose)
