"""The client's session with an embedded server."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from typing_extensions import override

from heliograph.base.errors import AuthenticationError, BadRequestError, HeliographError
from heliograph.base.guard.handshake import METADATA, ClientHandshake
from heliograph.base.tls.contexts import ClientTls
from heliograph.base.version import UNSAID, release_numbered, require_meeting
from heliograph.metadata.backends.embedded.calls import EmbeddedRequest, EmbeddedRequests, OnResult
from heliograph.metadata.backends.embedded.channel import Channel
from heliograph.metadata.backends.embedded.limits import RESET_WATCHES_MAX
from heliograph.metadata.backends.embedded.protocol import (
    MAGIC,
    SERVER_NAME,
    VERSION_FIELD,
    EmbeddedOp,
    Notice,
    check_arguments,
    decode_event,
    greeting_version,
)
from heliograph.metadata.errors import ConnectionLossError, MetadataProtocolError, SessionExpiredError
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import ATTEMPT_SECONDS_MIN, CLOSE_SECONDS_MAX, SILENCE_SHARE
from heliograph.metadata.session.reconnector import ReconnectingSession, Reconnector
from heliograph.metadata.session.session import QueuedSession
from heliograph.metadata.session.standing_watches import StandingWatch, StandingWatches
from heliograph.metadata.store import SessionState, WatchEvent

_GRANTED_WITH_RELEASE = 4  # items of the answer to a HELLO


class EmbeddedSession(QueuedSession[EmbeddedRequest], ReconnectingSession):
    """A session. Made by ``open``; every method is called on the loop that opened it."""

    def __init__(
        self, host: str, port: int, timeout_ms: int, tls: ClientTls | None = None, secret: str | None = None
    ) -> None:
        self._tls = tls
        self._requests = EmbeddedRequests()
        super().__init__(timeout_ms, self._requests)
        self._host = host
        self._port = port
        self._secret = secret
        self._channel: Channel | None = None
        self._endpoint = f"{host}:{port}"
        self._reconnector = Reconnector(self, [self._endpoint])
        self.watches: StandingWatches[StandingWatch] = StandingWatches()
        self.password = ""
        self._owner = ""  # our name as the owner of a session that was taken over
        self._takes_over = False
        self.has_pages = False  # whether the server answers CHILDREN_FROM, as all do that say their release

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        timeout_ms: int,
        connect_ms: int,
        known: tuple[int, str] | None = None,
        tls: ClientTls | None = None,
        secret: str | None = None,
    ) -> EmbeddedSession:
        """Begin a new session, or take over the session with the id and password in ``known``.

        Raises:
            ConnectionLossError: no answer within ``connect_ms``; says what happened last.
            AuthenticationError: one end does not know the other's secret.
            BadRequestError: the server speaks another version of the protocol.
            VersionMismatchError: the versions of server and client are too far apart for one cluster.
            SessionExpiredError: there is no session of that id and password.
        """
        session = cls(host, port, timeout_ms, tls, secret)
        if known is not None:
            session.clock.session_id, session.password = known
            session._owner, session._takes_over = secrets.token_hex(8), True
        deadline = now() + connect_ms / 1000
        try:
            await session._reconnector.attach_until(lambda: deadline)
        except BaseException:
            session.drop()
            raise
        session._start_tasks(session._reconnector.run(), session._heartbeat.run())
        return session

    @property
    @override
    def is_attached(self) -> bool:
        return self.clock.state is SessionState.CONNECTED

    @property
    @override
    def attempt_seconds(self) -> float:
        return max(self.clock.timeout * SILENCE_SHARE, ATTEMPT_SECONDS_MIN)

    def call(self, op: EmbeddedOp, *arguments: Any, on_result: OnResult | None = None) -> asyncio.Future[Any]:
        """Send a request, and return the future of its answer. Requests are sent in the order of these calls.

        Args:
            on_result: called with the result before any later frame of the server is handled.

        Raises:
            ConnectionLossError: there was no connection to send it on, or no answer came.
            SessionExpiredError: the session is over; the request was not sent or did nothing.
            HeliographError: as the server answered.
        """
        self.clock.check()
        number = next(self._requests.numbers)
        return self._ask(EmbeddedRequest(number, op, arguments, self._loop.create_future(), on_result))

    def tell(self, op: EmbeddedOp, *arguments: Any) -> None:
        """Send a request whose answer nobody needs, if there is a connection."""
        if self.is_attached:
            self._send(EmbeddedRequest(next(self._requests.numbers), op, arguments))

    @override
    def ping(self) -> None:
        self.tell(EmbeddedOp.PING)

    @override
    async def attach(self, endpoint: str, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await self._connect()
        await self._reset_watches()
        if self._channel is not None:
            self.clock.turn(SessionState.CONNECTED)
            self._pump()

    @override
    def drop(self) -> None:
        if self._channel is not None:
            self._channel.abort()
            self._on_disconnected(self._channel)

    @override
    def is_final(self, error: HeliographError) -> bool:
        if self._tasks:  # another answer may change: the server may be replaced or configured again
            return isinstance(error, SessionExpiredError)
        return not isinstance(error, ConnectionLossError)

    @override
    async def _end_at_store(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            return
        future: asyncio.Future[Any] = self._loop.create_future()
        self._send(EmbeddedRequest(next(self._requests.numbers), EmbeddedOp.CLOSE, (), future))
        await asyncio.wait([future], timeout=CLOSE_SECONDS_MAX)
        if future.done() and not future.cancelled():
            future.exception()

    @override
    def _on_lost(self) -> None:
        self.watches.clear()
        self._requests.fail_waiting(self.clock.over)

    async def _connect(self) -> None:
        assert self._channel is None, "one connection at a time"
        channel = Channel(self._on_frame, self._on_disconnected)
        context = None if self._tls is None else self._tls.context
        await self._loop.create_connection(lambda: channel, self._host, self._port, ssl=context)
        self._channel = channel
        self._heartbeat.begin()
        if self._secret is not None:
            await self._prove(self._secret)
        timeout_ms = round(self.clock.timeout * 1000)
        op = EmbeddedOp.RESUME if self._owner else EmbeddedOp.HELLO
        arguments: tuple[Any, ...] = (timeout_ms, self.clock.session_id, self.password)
        if self._owner:
            arguments = (self.clock.session_id, self.password, self._owner, self._takes_over)
        granted = await self._greet(op, arguments)
        is_release_told = isinstance(granted, list) and len(granted) == _GRANTED_WITH_RELEASE
        check_arguments(granted, (int, str, int, int) if is_release_told else (int, str, int))
        require_meeting(release_numbered(granted[3]) if is_release_told else UNSAID, self._server)
        self.has_pages = is_release_told
        self.clock.session_id, self.password, timeout_ms = granted[:3]
        self.clock.timeout = timeout_ms / 1000
        self._takes_over = False

    @property
    def _server(self) -> str:
        return f"the metadata store at {self._endpoint}"

    async def _greet(self, op: EmbeddedOp, arguments: tuple[Any, ...]) -> Any:
        """Send the greeting, which names our version."""
        try:
            return await self._request(op, (MAGIC, greeting_version(with_release=True), *arguments))
        except BadRequestError as error:
            if error.field != VERSION_FIELD:
                raise
        require_meeting(UNSAID, self._server)
        return await self._request(op, (MAGIC, greeting_version(with_release=False), *arguments))

    async def _prove(self, secret: str) -> None:
        """Prove that both ends know the cluster's secret."""
        handshake = ClientHandshake(secret, METADATA)
        challenge = await self._greet(EmbeddedOp.CHALLENGE, (handshake.nonce,))
        check_arguments([challenge], (bytes,))
        if not challenge:
            raise AuthenticationError(
                f"{self._server} asks for no proof of the cluster's secret, so it may not belong to the cluster",
                field="cluster_secret",
            )
        try:
            proof = handshake.prove(challenge, SERVER_NAME)
        except AuthenticationError as error:
            raise AuthenticationError(f"{self._server} is not asked: {error}", field="cluster_secret") from error
        await self._request(EmbeddedOp.PROVE, (proof,))

    async def _reset_watches(self) -> None:
        items = [
            [watch.number, int(watch.kind), watch.path, watch.czxid, watch.zxid]
            for watch in self.watches
            if watch.is_armed
        ]
        for start in range(0, len(items), RESET_WATCHES_MAX):
            await self._request(EmbeddedOp.RESET_WATCHES, (items[start : start + RESET_WATCHES_MAX],))

    async def _request(self, op: EmbeddedOp, arguments: tuple[Any, ...]) -> Any:
        """Send a request on behalf of the session, ahead of every waiting call, and wait for its answer."""
        if self._channel is None:
            raise ConnectionLossError("the connection was lost")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._send(EmbeddedRequest(next(self._requests.numbers), op, arguments, future))
        return await future

    @override
    def _send(self, call: EmbeddedRequest) -> None:
        if self._channel is None:
            call.fail(ConnectionLossError("the connection was lost; the call was not sent"))
            return
        self._requests.sent(call, call.number)
        self._channel.put(call.frame)

    def _on_frame(self, frame: list[Any]) -> None:
        self._heartbeat.heard()
        if frame[0] == 0:
            self._on_notice(frame)
            return
        if len(frame) != 3:
            raise MetadataProtocolError("an answer has three parts")
        answered = self._requests.settle(*frame)
        if answered is None:
            return
        sent_at, error = answered
        if isinstance(error, SessionExpiredError):
            self.lose()
        elif self.clock.state is not SessionState.LOST:
            self.clock.confirm(sent_at)
            if self._requests.waiting:
                self._pump()

    def _on_notice(self, frame: list[Any]) -> None:
        if frame[1] == Notice.SESSION_ENDED:
            self.lose()
        elif frame[1] == Notice.EVENT and len(frame) == 5:
            # In the queue of the loop, behind the waiters of the answers that came before this event.
            self._loop.call_soon(self._deliver, *decode_event(frame[2:]))
        else:
            raise MetadataProtocolError(f"unknown notice {frame[1]}")

    def _deliver(self, number: int, event: WatchEvent) -> None:
        watch = self.watches.get(number)
        if watch is not None:
            self.watches.deliver(watch, event)

    def _on_disconnected(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        self._channel = None
        if self.is_attached:
            self.clock.turn(SessionState.SUSPENDED)
        lost = ConnectionLossError("the connection to the metadata server was lost; the outcome of the call is unknown")
        self._requests.fail_in_flight(lost)
        self._reconnector.connection_lost(self._endpoint, "the connection was lost")
