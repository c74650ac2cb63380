"""One connection to a ZooKeeper server: requests as kazoo encodes them, their answers in order, and watch events.

kazoo's own client uses threads, begins another session after an expired one, and drops watchers when a connection
breaks. So only its codec is used here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from kazoo.exceptions import EXCEPTIONS, AuthFailedError, ConnectionLoss, KazooException, NoNodeError
from kazoo.protocol.serialization import Auth, CloseInstance, Connect, Exists, ReplyHeader, Watch
from typing_extensions import override

from heliograph.base.errors import NotPermittedError
from heliograph.metadata.errors import ConnectionLossError

ANSWER_BYTES_MAX = 256 << 20  # of one frame from a server; a larger one ends the connection  # I15
_AUTH_XID, _EVENT_XID = -4, -1
_XID_MAX = (1 << 31) - 1
_NO_PASSWORD = bytes(16)
_INT = struct.Struct("!i")
_NO_SESSION = "it accepts connections but grants no session"

Settled = Callable[[Any, BaseException | None], object]  # gets the answer as kazoo decodes it, or kazoo's error


class ZooKeeperConnection(asyncio.Protocol):
    """A connection, from ``open`` until ``on_lost`` is called, once. Unanswered requests fail then.

    Attributes:
        zxid: of the newest change that the server has reported.
    """

    def __init__(
        self, on_event: Callable[[int, str], object], on_lost: Callable[[ZooKeeperConnection], object]
    ) -> None:
        self.zxid = 0
        self._on_event = on_event
        self._on_lost = on_lost
        self._is_over = False
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._xid = 0
        self._granted: asyncio.Future[Connect] | None = None  # the answer to the first frame
        self._unanswered: deque[tuple[int, Any, Settled]] = deque()  # xid, request; servers answer in order

    async def open(self, endpoint: str, seconds: float, begin: Callable[[], Any]) -> Any:
        """Connect to ``host:port`` and return what ``begin`` returns, which asks for the session.

        Raises:
            ConnectionLossError: it took longer, or failed; says how.
            NotPermittedError: as ``begin``.
        """
        host, _, port = endpoint.rpartition(":")
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
                return await begin()
        except (socket.gaierror, UnicodeError):
            raise ConnectionLossError("the name cannot be resolved") from None
        except TimeoutError:
            was_accepted = self._transport is not None
            told = _NO_SESSION if was_accepted else f"no answer in {seconds:.1f} s"
            raise ConnectionLossError(told) from None
        except OSError as error:
            raise ConnectionLossError(os.strerror(error.errno) if error.errno else str(error)) from error

    async def begin(
        self, timeout_ms: int, session_id: int, password: bytes, zxid: int, auth: Sequence[tuple[str, str]]
    ) -> Connect | None:
        """Begin a session, or resume it if its id is not 0. Return the granted session, None if it is over.

        Args:
            zxid: of the newest change that the client knows; a server that is behind it refuses the client.
            auth: scheme and credential of each identity to present.

        Raises:
            ConnectionLossError: the server closed the connection.
            NotPermittedError: it refuses the credentials.
        """
        granted = await self._ask_for_session(timeout_ms, session_id, password, zxid)
        if granted.time_out <= 0:
            return None
        for scheme, credential in auth:
            try:
                await self.ask(Auth(0, scheme, credential), _AUTH_XID)
            except AuthFailedError:
                raise NotPermittedError("ZooKeeper refuses the credentials") from None
            except KazooException as error:
                raise ConnectionLossError(f"the credentials were answered with {type(error).__name__}") from None
        return granted

    async def end(self, timeout_ms: int, session_id: int, password: bytes, auth: Sequence[tuple[str, str]]) -> None:
        """Take a session over and close it, unless it is over. All is sent at once, because its owner is about to
        reconnect.

        Raises:
            ConnectionLossError: the connection ended before it was closed.
        """
        asked = self._ask_for_session(timeout_ms, session_id, password, 0)
        for scheme, credential in auth:
            self.submit(Auth(0, scheme, credential), lambda *_: None, _AUTH_XID)
        closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        closed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.submit(CloseInstance, partial(_settle, closed))
        try:
            if (await asked).time_out > 0:
                await closed
        except KazooException as error:
            raise ConnectionLossError(f"the end was answered with {type(error).__name__}") from None

    def _ask_for_session(self, timeout_ms: int, session_id: int, password: bytes, zxid: int) -> asyncio.Future[Connect]:
        """Ask for a session, and return the future of the answer."""
        self.zxid = zxid
        self._granted = asyncio.get_running_loop().create_future()
        if self._is_over:
            self._granted.set_exception(ConnectionLossError(_NO_SESSION))
        else:
            self._write(Connect(0, zxid, timeout_ms, session_id, password or _NO_PASSWORD, False).serialize())
        return self._granted

    def submit(self, request: Any, settled: Settled, xid: int = 0) -> None:
        """Send a request. ``settled`` is called once, before any later message of the server is handled."""
        if self._is_over:
            settled(None, ConnectionLoss())
            return
        if not xid:
            self._xid = xid = self._xid % _XID_MAX + 1
        content = _INT.pack(xid) + _INT.pack(request.type) + request.serialize()
        self._unanswered.append((xid, request, settled))
        self._write(content)

    async def ask(self, request: Any, xid: int = 0) -> Any:
        """Send a request and return its answer; raises the errors of kazoo."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(request, partial(_settle, answered), xid)
        return await answered

    def abort(self) -> None:
        """Close at once. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        if self._is_over:
            self._transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        """Pass the frames on. Bytes that are not the protocol end the connection."""
        self._received += data
        start = 0
        try:
            while len(self._received) - start >= _INT.size and not self._is_over:
                (size,) = _INT.unpack_from(self._received, start)
                if not 0 <= size <= ANSWER_BYTES_MAX:
                    raise ValueError(f"a frame of {size} bytes")
                end = start + _INT.size + size
                if len(self._received) < end:
                    break
                self._on_frame(bytes(self._received[start + _INT.size : end]))
                start = end
        except (struct.error, ValueError, RuntimeError):  # the last one is kazoo's for an unknown error code
            self.abort()
        del self._received[:start]

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _on_frame(self, frame: bytes) -> None:
        if self._granted is None:
            raise ValueError("a server is silent until it is asked")
        if not self._granted.done():
            self._granted.set_result(Connect.deserialize(frame, 0)[0])
            return
        header, start = ReplyHeader.deserialize(frame, 0)
        if header.xid == _EVENT_XID:
            event, _ = Watch.deserialize(frame, start)
            self._on_event(event.type, event.path)
            return
        self.zxid = max(self.zxid, header.zxid)
        if not self._unanswered or self._unanswered[0][0] != header.xid:
            raise ValueError("an answer to no request, or out of order")
        _, request, settled = self._unanswered[0]
        value, error = None, None
        if header.err and not (header.err == NoNodeError.code and isinstance(request, Exists)):
            error = EXCEPTIONS[header.err]()
        elif not header.err:
            value = request.deserialize(frame, start) if hasattr(request, "deserialize") else True
        self._unanswered.popleft()
        settled(value, error)

    def _write(self, content: bytes | bytearray) -> None:
        assert self._transport is not None, "an open connection"
        self._transport.write(_INT.pack(len(content)) + bytes(content))

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._granted is not None and not self._granted.done():
            self._granted.set_exception(ConnectionLossError(_NO_SESSION))
        self._on_lost(self)
        while self._unanswered:
            self._unanswered.popleft()[2](None, ConnectionLoss())


def _settle(answered: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answered.done():
        return
    if error is None:
        answered.set_result(value)
    else:
        answered.set_exception(error)
