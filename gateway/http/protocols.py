"""uvicorn's protocols for HTTP/1.1 and WebSocket, with the gateway's limits and its rules about what is logged.

A connection that says nothing costs as much as one that does, so each has deadlines: for its handshake and the headers
of a request, and for a body, which has to keep a least speed. Their memory is counted (``BodyBudget``).
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import h11
from typing_extensions import override
from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState

from heliograph.base.guard.listener import UnsentBudget
from heliograph.base.guard.shares import ConnectionLimit
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManyRequestsError, TooMuchHeldError
from heliograph.gateway.http.door import CERTIFICATE
from heliograph.gateway.http.limits import BodyBudget

BODY_BYTES_PER_SECOND_LEAST = 16 * 1024  # a body that comes slower than this uses up its deadline
UNSENT_BYTES_ONE = 64 << 10  # of one connection, from which on the app waits; asyncio's own limit  # I15
LOG_SECONDS = 10.0  # in which at most one line is written about requests that are not HTTP


class Connections:
    """The open connections of one server, their deadlines, and what waits to be written to all of them."""

    def __init__(self, config: GatewayConfig, budget: BodyBudget) -> None:
        self.limit = ConnectionLimit(config.connections_max, config.connections_per_address_max)
        self.budget = budget
        self.unsent = UnsentBudget(UNSENT_BYTES_ONE)
        self._header_seconds = config.request_header_seconds
        self._body_seconds = config.request_body_seconds
        self.open: set[HttpProtocol] = set()

    def close_late(self, now: float) -> None:
        """Close the connections that keep the gateway waiting. ``now`` is of the monotonic clock, in seconds."""
        for connection in list(self.open):
            since, is_body = connection.waits
            if since is not None and now - since >= (self._body_seconds if is_body else self._header_seconds):
                connection.close_as_late(is_body)


class _RarelyFilter(logging.Filter):
    """Lets one line pass in a period: a stranger must not fill a disk with them."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
            # Of a frame, which uvicorn logs as an error, with a stack.
            record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
        if record.levelno > logging.WARNING:
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOG_SECONDS
        return True


def _quiet_logger() -> logging.Logger:
    """Return a logger of uvicorn for warnings, of which few are written, and errors.

    Its other lines show the whole target of an upgrade, whose query may hold the caller's token.
    """
    logger = logging.Logger("uvicorn.error", logging.WARNING)
    logger.parent = logging.getLogger("uvicorn.error")
    logger.addFilter(_RarelyFilter())
    return logger


_LOGGER = _quiet_logger()


class _WatchedWriter:
    """A protocol whose unsent bytes count for those of all connections."""

    transport: Any
    _connections: Connections

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]  # of uvicorn's protocol, which this class stands before
        self._connections.unsent.note(self.transport, is_full=True)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._connections.unsent.note(self.transport, is_full=False)


class HttpProtocol(_WatchedWriter, H11Protocol):
    """One HTTP connection, until it ends or becomes a WebSocket."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.logger = _LOGGER
        self._connections = connections
        self._address = ""
        self._is_admitted = False
        self._phase: object = h11.IDLE
        self._since: float | None = None  # when it began to keep the gateway waiting

    @property
    def waits(self) -> tuple[float | None, bool]:
        """Return since when the gateway waits for it, None if it does not, and whether that is for a body."""
        return self._since, self._phase is h11.SEND_BODY

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if certificate := transport.get_extra_info("peercert"):
            self.app_state = {**self.app_state, CERTIFICATE: certificate}
        self._is_admitted = self._connections.limit.admit(self._address)
        if not self._is_admitted:
            self._end_with(429, "too many connections are open, in all or of your address", "retry")
            return
        self._connections.open.add(self)
        self._connections.unsent.join(transport)
        self._since = time.monotonic()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections.open.discard(self)
        self._connections.unsent.leave(self.transport)
        if self._is_admitted:
            self._is_admitted = False
            self._connections.limit.leave(self._address)

    @override
    def data_received(self, data: bytes) -> None:
        if not self._is_admitted:
            return
        super().data_received(data)
        phase = self.conn.their_state
        if phase is self._phase:
            if phase is h11.SEND_BODY and self._since is not None:
                self._since = min(time.monotonic(), self._since + len(data) / BODY_BYTES_PER_SECOND_LEAST)
            return
        self._phase = phase
        self._since = time.monotonic() if phase in (h11.IDLE, h11.SEND_BODY) else None

    @override
    def handle_websocket_upgrade(self, event: Any) -> None:
        self._connections.open.discard(self)
        self._connections.unsent.leave(self.transport)
        self._is_admitted = False  # the protocol that takes over counts the connection's end
        super().handle_websocket_upgrade(event)

    @override
    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP. A request before them that is being answered is given up: h11 is in an error
        state, in which an answer raises."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer has begun, or was the last one
            self.transport.close()

    def close_as_late(self, is_body: bool) -> None:
        """Close a connection that sent too little in its time, with status 408 if it is not answered yet."""
        self._connections.open.discard(self)
        if self.cycle is not None and self.cycle.response_started:
            self.transport.close()
        else:
            what = "body" if is_body else "headers"
            self._end_with(408, f"the request's {what} did not arrive in time", "retry")

    def _end_with(self, status: int, reason: str, advice: str) -> None:
        body = json.dumps({"reason": reason, "advice": advice}).encode()
        phrase = "Too Many Requests" if status == 429 else "Request Timeout"
        head = (
            f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Retry-After: 1\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class WebSocketProtocol(_WatchedWriter, WebSocketsSansIOProtocol):
    """One WebSocket connection. It takes over the place of the HTTP connection that it was."""

    def __init__(self, connections: Connections, config: Config, server_state: ServerState, app_state: Any) -> None:
        super().__init__(config, server_state, app_state)
        self.logger = self.conn.logger = _LOGGER
        self.conn.debug = False
        self._connections = connections
        self._address = ""
        self._is_asked = False  # whether the request of the upgrade has come, which is the first that comes
        self._held = 0  # bytes of a frame or message that is not complete

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._connections.unsent.join(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections.unsent.leave(self.transport)
        self._connections.limit.leave(self._address)
        self._hold(0)

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_asked and not self.handshake_complete:
            self.transport.abort()  # RFC 6455 has clients wait for the answer; uvicorn cannot read a frame before it
            return
        self._is_asked = True
        super().data_received(data)
        if not self.handshake_initiated:  # a line that is too long, or too many: uvicorn leaves the answer to us
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            return
        try:
            self._hold(len(self.conn.reader.buffer) + sum(map(len, self.frames)))
        except (TooManyRequestsError, TooMuchHeldError) as error:
            if not self.close_sent:
                self.conn.fail(1013, str(error)[:120])
                self.handle_parser_exception()

    @override
    def send_receive_event_to_app(self) -> None:
        try:
            super().send_receive_event_to_app()
        except InvalidState:  # a message that is not UTF-8, of a peer that has closed the session
            self.transport.close()

    @override
    async def send(self, message: ASGISendEvent) -> None:
        await self.writable.wait()
        if self.close_sent:  # also by the protocol itself, because of a frame that cannot be read
            raise ClientDisconnected
        await super().send(message)
        if self.close_sent:
            # Otherwise uvicorn takes a refused upgrade for an app that has not answered, and logs an error for each.
            self.handshake_complete = True

    def _hold(self, size: int) -> None:
        if size > self._held:
            self._connections.budget.take(self._address, size - self._held)
        elif size < self._held:
            self._connections.budget.give_back(self._address, self._held - size)
        self._held = size
