"""The connection of one client: bytes in, requests in their order, answers and events out.

Consecutive writes run concurrently. Every other request begins after all earlier ones are answered, and the next one
waits for it: a read sees the client's earlier writes and no later ones.

A request in progress is finished even if the client disconnects; as after any lost connection, the client does not know
the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from typing_extensions import override

from heliograph.auth.authenticator import Authenticator
from heliograph.base.errors import HeliographError
from heliograph.base.guard.framed_connection import ENDED, ConnectionState, FramedConnection
from heliograph.base.guard.listener import ListenerGuard
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.metadata.endpoint.limits import (
    OUTPUT_BYTES_MAX,
    OUTPUT_BYTES_PAUSE,
    REQUEST_BYTES_QUEUED_MAX,
    REQUESTS_QUEUED_MAX,
    WRITES_IN_FLIGHT_MAX,
)
from heliograph.metadata.endpoint.serving.operations import Operations
from heliograph.metadata.endpoint.serving.pipeline import Pipeline, RequestOutcome
from heliograph.metadata.endpoint.session.acl_directory import AclDirectory
from heliograph.metadata.endpoint.session.caller import EndpointCaller
from heliograph.metadata.endpoint.session.session import WireSession
from heliograph.metadata.endpoint.session.sessions import SessionTable
from heliograph.metadata.endpoint.session.statistics import ConnectionFacts, Statistics
from heliograph.metadata.endpoint.wire import replies
from heliograph.metadata.endpoint.wire.codes import ErrorCode, OpCode, code_of
from heliograph.metadata.endpoint.wire.frames import FrameCutter
from heliograph.metadata.endpoint.wire.requests import ConnectRequest, EndpointRequest, decode_connect, decode_request
from heliograph.metadata.errors import ConnectionLossError, MetadataProtocolError, SessionExpiredError
from heliograph.metadata.store import WatchEvent

log = logging.getLogger(__name__)
quiet = QuietLog(log)


class Host(Protocol):
    """The interface of the endpoint for its connections."""

    sessions: SessionTable
    directory: AclDirectory
    statistics: Statistics
    guard: ListenerGuard
    authenticator: Authenticator

    @property
    def is_ready(self) -> bool:
        """Return whether clients may be served."""

    def now_ms(self) -> int:
        """Return the time of the clock of deadlines, in milliseconds."""

    def on_connected(self, connection: EndpointConnection) -> bool:
        """Register an open connection. Return False to refuse it."""

    def on_disconnected(self, connection: EndpointConnection) -> None:
        """Remove a closed connection."""

    def answer_word(self, word: bytes) -> str:
        """Return the text that answers a four-letter word."""


class EndpointConnection(FramedConnection, asyncio.Protocol):
    """One client's connection. ``session`` is None until the client ``is_admitted``, and after it has closed its
    session."""

    def __init__(self, host: Host) -> None:
        self._cutter = FrameCutter()
        super().__init__(host.guard, self._cutter)
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._requests: deque[EndpointRequest] = deque()  # not begun
        self._request_bytes = 0  # of all that are not answered
        self._unanswered = 0
        self._received = self._sent = 0
        self._connect: ConnectRequest | None = None
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._worker: asyncio.Task[None] | None = None
        self.session: WireSession | None = None
        self.caller: EndpointCaller | None = None
        self.is_admitted = False
        self.opened_ms = 0

    @property
    def is_established(self) -> bool:
        """Whether the client has a session and, if it must, has authenticated."""
        return self.is_admitted and self.caller is not None and self.caller.is_authenticated

    def facts(self) -> ConnectionFacts:
        session = self.session
        return ConnectionFacts(
            self.peer,
            self._unanswered,
            self._received,
            self._sent,
            session.session_id if session is not None else 0,
            session.timeout_ms if session is not None else 0,
        )

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None, "the socket is open"
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES_PAUSE)
        self.opened_ms = self._host.now_ms()
        if not self._host.on_connected(self):
            self.abort()

    @override
    def data_received(self, data: bytes) -> None:
        counts = self._host.statistics
        counts.bytes_in += len(data)
        try:
            frames = self._cutter.feed(data)
            if self._cutter.word is not None:
                self._answer_word(self._cutter.word)
                return
            for frame in frames:
                counts.frames_in += 1
                self._received += 1
                self._take(frame)
            if self._cutter.buffered or self._frame.held:
                self._note_frame(is_new=bool(frames))
        except MetadataProtocolError as error:
            quiet.warning("frame", "closing the connection of %s: %s", self.peer, error)
            self.abort()
            return
        if self.session is not None:
            self.session.touch(self._host.now_ms())
        if self._unanswered >= REQUESTS_QUEUED_MAX or self._request_bytes >= REQUEST_BYTES_QUEUED_MAX:  # I15
            self.hold_back()
        self._arrived.set()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._requests.clear()
        self._writable.set()
        self._arrived.set()
        self._leave_session()
        self._host.on_disconnected(self)

    @override
    def pause_writing(self) -> None:
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        self._writable.set()

    @override
    def abort(self) -> None:
        super().abort()
        self._arrived.set()

    async def end(self) -> None:
        """Close immediately and wait until the present request is done: another connection takes the session over."""
        self.abort()
        self._leave_session()
        await self.wait_done()
        if self.session is not None and self.session.latest is self:
            self.session.latest = None

    async def wait_done(self) -> None:
        """Wait until no request is in progress."""
        if self._worker is not None:
            await asyncio.wait([self._worker])

    def _leave_session(self) -> None:
        if self.session is not None and self.session.connection is self:
            self.session.connection = None
            self.session.watches.detach()

    def _take(self, frame: bytes) -> None:
        if self.state in ENDED:
            return
        if self._connect is None:
            self._connect = decode_connect(frame)
            self._move(ConnectionState.AUTHENTICATING)
            self._worker = self._loop.create_task(self._work(self._connect))
            return
        request = decode_request(frame)
        self._requests.append(request)
        self._request_bytes += request.size
        self._unanswered += 1

    async def _work(self, connect: ConnectRequest) -> None:
        try:
            if await self._admit(connect):
                await self._serve()
        except ConnectionLossError as error:
            log.info("closing the connection of %s: %s", self.peer, error)
        except SessionExpiredError as error:
            log.info("closing the connection of %s, its session has ended: %s", self.peer, error)
        except Exception:
            log.exception("closing the connection of %s after an internal error", self.peer)
        self._finish()
        if self.is_admitted:
            await self._pipeline.finish()

    async def _admit(self, connect: ConnectRequest) -> bool:
        if not self._host.is_ready:
            raise ConnectionLossError("the metadata store is unreachable")
        session = await self._host.sessions.admit(connect)
        if session is None:
            self._put(replies.expired(connect.has_read_only))
            return False
        if self.state in ENDED:
            # The client does not know this new session and would never use it.
            if connect.session_id == 0:
                await self._host.sessions.close(session)
            return False
        self._move(ConnectionState.CONNECTED)
        self.session = session
        self.is_admitted = True
        session.connection = session.latest = self
        host = self.peer.rpartition(":")[0]
        caller = self.caller = EndpointCaller(self._host.authenticator, self.peer)
        self._operations = Operations(session, self._host.directory, caller, host)
        # Requests that overlap concern nodes without an ACL. An ACL that is stored meanwhile does not hold for them.
        self._unguarded = Operations(session, AclDirectory(), caller, host)
        self._pipeline = Pipeline(
            lambda request: self._run(request, self._unguarded), self._answer, on_failure=self._arrived.set
        )
        session.watches.attach(self._tell, self.abort)
        self._put(replies.connected(session.timeout_ms, session.session_id, session.password, connect.has_read_only))
        return True

    async def _serve(self) -> None:
        pipeline = self._pipeline
        while self.state not in ENDED:
            pipeline.check()
            if not self._requests:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            if not self._writable.is_set():
                await self._writable.wait()
                continue
            is_refused = not self._operations.guard.caller.may_request(self._requests[0].op)
            overlaps = not is_refused and self._operations.may_overlap(self._requests[0])
            room = WRITES_IN_FLIGHT_MAX if overlaps else 1  # I15
            if len(pipeline) >= room:
                await pipeline.until_below(room)
                continue
            request = self._requests.popleft()
            if overlaps:
                pipeline.begin(request)
                continue
            if is_refused:
                quiet.warning("anonymous", "closing the connection of %s, which has not shown who it is", self.peer)
                self._answer(request, RequestOutcome(ErrorCode.SESSION_CLOSED_REQUIRE_AUTH), self._loop.time())
                return
            if request.op is OpCode.CLOSE_SESSION:
                await self._close_session(request)
                return
            begun = self._loop.time()
            outcome = await self._run(request, self._operations)
            self._answer(request, outcome, begun)
            if request.op is OpCode.AUTH and outcome.code is ErrorCode.AUTH_FAILED:
                return

    async def _run(self, request: EndpointRequest, operations: Operations) -> RequestOutcome:
        counts = self._host.statistics
        counts.requests[request.op.name.lower() if request.op is not None else "unknown"] += 1
        try:
            return RequestOutcome(ErrorCode.OK, await operations.run(request))
        except (ConnectionLossError, SessionExpiredError):
            raise
        except HeliographError as error:
            code = code_of(error)
        except Exception:
            log.exception("a request of %s failed with an internal error", self.peer)
            code = ErrorCode.SYSTEM_ERROR
        counts.errors[code.name.lower()] += 1
        return RequestOutcome(code)

    def _answer(self, request: EndpointRequest, outcome: RequestOutcome, begun: float) -> None:
        session = self.session
        assert session is not None, "only admitted clients are answered"
        self._unanswered -= 1
        self._request_bytes -= request.size
        self._host.statistics.answered_after((self._loop.time() - begun) * 1000)
        if self._unanswered <= REQUESTS_QUEUED_MAX // 2 and self._request_bytes <= REQUEST_BYTES_QUEUED_MAX // 2:
            self.let_go()
        if session.connection is not self:
            return
        session.touch(self._host.now_ms())
        self._put(replies.reply(request.xid, session.zxid, outcome.code, outcome.body))
        session.watches.answered()

    async def _close_session(self, request: EndpointRequest) -> None:
        assert self.session is not None, "only admitted clients are answered"
        self._host.statistics.requests["close_session"] += 1
        session, self.session = self.session, None
        session.connection = None
        session.watches.detach()
        await self._host.sessions.close(session)
        self._put(replies.reply(request.xid, session.zxid, ErrorCode.OK))

    def _tell(self, event: WatchEvent) -> None:
        if self._operations.guard.may_watch(event.path):
            self._host.statistics.events += 1
            self._put(replies.event(event))

    def _put(self, frame: bytes) -> None:
        if self._transport is None or self.state in ENDED:
            return
        self._host.statistics.frames_out += 1
        self._sent += 1
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:  # I15
            quiet.warning("slow", "closing the connection of %s, which does not read its answers", self.peer)
            self.abort()

    def _answer_word(self, word: bytes) -> None:
        if self._transport is not None and self.state not in ENDED:
            self._transport.write(self._host.answer_word(word).encode())
            self._finish()

    def _finish(self) -> None:
        """Close the socket after sending the queued answers."""
        self._begin_closing()
        if self._transport is not None:
            self._transport.close()
