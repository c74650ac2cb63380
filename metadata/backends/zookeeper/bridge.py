"""The bridge from kazoo's thread to the event loop: everything that the thread receives reaches the loop in order.

kazoo itself runs watchers on one thread and completions on another, which loses the order of an event and the answer
that follows it. It also begins a new session when one has expired, drops watchers when a connection breaks, and does
not say why it could not connect. So only its codec and its socket loop are used here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import CloseInstance, Watch
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import CLOSE_SECONDS_MAX, RECONNECT_PAUSE_MS, RECONNECT_PAUSE_MS_MAX

Endpoint = tuple[str, int]
_OVER = (KeeperState.EXPIRED_SESSION, KeeperState.AUTH_FAILED, KeeperState.CLOSED)
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)  # it warns of every attempt to connect; the session's state says it once


class Listener(Protocol):
    """The receiver of a bridge's events, on the event loop."""

    def on_connected(self, began: float, timeout_ms: int, session_id: int, password: bytes) -> None:
        """Note that a server granted or resumed the session; ``began`` is when it was asked, by ``now``."""

    def on_disconnected(self) -> None:
        """Note that the connection is gone. Failed replies to all requests under way follow."""

    def on_over(self, reason: str) -> None:
        """Note that the session is over: a server said so, or it was closed."""

    def on_event(self, number: int, path: str) -> None:
        """Take a watch event."""

    def on_reply(self, tag: Any, value: Any, error: BaseException | None) -> None:
        """Take the reply to a request. Each request gets at least one."""


class Bridge:
    """The kazoo client of one session. ``end`` blocks and belongs on a thread; the other methods belong on the loop."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        timeout_ms: int,
        listener: Listener,
        *,
        auth: Sequence[tuple[str, str]] = (),
        client_id: tuple[int, bytes] | None = None,
        is_ending: bool = False,
        is_movable: bool = False,
    ) -> None:
        """
        Args:
            auth: scheme and credential of each identity to present.
            client_id: session id and password of a session to take over, instead of beginning one.
            is_ending: close that session at once. ``on_over`` says that it is closed, or that it was over before.
            is_movable: give the session up when its connection breaks (``on_over``), instead of attaching again:
                another client may have taken it over, and would lose it to us.
        """
        self.is_ending = is_ending
        self.is_movable = is_movable
        self.failures: dict[str, str] = {}  # by ``host:port``: why it could not be used the last time
        self.attempt_seconds = timeout_ms / 1000  # what one attempt to connect gets
        self._inbox = _Inbox(asyncio.get_running_loop(), listener)
        self._ending = threading.Lock()
        self._ended = False
        self._client = _Client(
            self._inbox,
            self,
            hosts=",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in endpoints),
            timeout=timeout_ms / 1000,
            auth_data=set(auth),
            client_id=client_id,
        )

    def start(self) -> None:
        """Connect, and connect again whenever the connection breaks, until ``end``."""
        self._client.start_async()

    def submit(self, request: Any, tag: Any) -> None:
        """Send a request; the listener gets its reply with ``tag``."""
        self._client._call(request, _Reply(self._inbox, tag))

    def drop(self) -> None:
        """Break the connection, which has been silent for too long."""
        connected = self._client._connection._socket
        if connected is not None:
            with contextlib.suppress(OSError):  # gone already
                connected.shutdown(socket.SHUT_RDWR)

    def end(self, *, closes: bool = True) -> None:
        """End the session if a server can be reached now, and the thread in any case. Blocks. Idempotent.

        Args:
            closes: whether the session ends; otherwise it stands until its timeout.
        """
        with self._ending:
            if not self._ended:
                self._ended = True
                self._client.end(closes=closes)


class _Inbox:
    """The calls of the listener that wait for the loop. One wake-up serves all calls posted before it runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self.listener = listener
        self._loop = loop
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False

    def post(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            if self._woken:
                return
            self._woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no listener any more
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, deque()
            self._woken = False
        for call in calls:
            call()


class _Reply:
    """The asynchronous result of a request, in the form that kazoo expects."""

    __slots__ = ("_inbox", "_tag")

    def __init__(self, inbox: _Inbox, tag: Any) -> None:
        self._inbox = inbox
        self._tag = tag

    def set(self, value: Any = None) -> None:
        self._inbox.post(partial(self._inbox.listener.on_reply, self._tag, value, None))

    def set_exception(self, error: BaseException) -> None:
        self._inbox.post(partial(self._inbox.listener.on_reply, self._tag, None, error))


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without worker threads."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self._bridge = bridge

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_connection(self, *arguments: Any, **options: Any) -> socket.socket:
        options["timeout"] = min(options["timeout"], self._bridge.attempt_seconds)
        connected: socket.socket = super().create_connection(*arguments, **options)
        return connected


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's socket loop. Every method runs on its thread."""

    def __init__(self, client: _Client, inbox: _Inbox, bridge: Bridge, retry: KazooRetry) -> None:
        super().__init__(client, retry, logger=_kazoo_log)
        self._inbox = inbox
        self._bridge = bridge

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        began, endpoint = now(), f"{host}:{port}"
        try:
            read_timeout, connect_timeout = super()._connect(host, hostip, port)
        except (ConnectionDropped, KazooTimeoutError) as error:
            self._bridge.failures[endpoint] = _reason(error, was_accepted=self._socket is not None)
            raise
        self._bridge.failures.pop(endpoint, None)
        self._fail_stragglers()
        if self._bridge.is_ending:
            # On this thread, at once: the session's owner is about to connect again, which would resume the session.
            self.client._queue.append((CloseInstance, None))
            self._write_sock.send(b"\0")
        granted_ms = round(read_timeout * 3 / 2)
        client = self.client
        self._inbox.post(
            partial(self._inbox.listener.on_connected, began, granted_ms, client._session_id, client._session_passwd)
        )
        return read_timeout, connect_timeout

    def _fail_stragglers(self) -> None:
        """Fail the requests made while there was no connection: they would be sent before the watches are set again."""
        self.client._notify_pending(KeeperState.CONNECTING)
        if self.client._stopped.is_set():
            self.client._queue.append((CloseInstance, None))

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        return super()._invoke(min(timeout, self._bridge.attempt_seconds), request, xid)

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = super()._expand_client_hosts()
        resolved = {host for host, _, _ in found}
        for host, port in self.client.hosts:
            if host not in resolved:
                self._bridge.failures[f"{host}:{port}"] = "the name cannot be resolved"
        return found

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self.client._data_watchers.pop(event.path, None)
        self.client._child_watchers.pop(event.path, None)
        self._inbox.post(partial(self._inbox.listener.on_event, event.type, event.path))


class _Client(KazooClient):  # type: ignore[misc]
    """kazoo's client for one session: it ends when the session does."""

    def __init__(self, inbox: _Inbox, bridge: Bridge, **options: Any) -> None:
        retry = KazooRetry(
            max_tries=-1, delay=RECONNECT_PAUSE_MS / 1000, max_delay=RECONNECT_PAUSE_MS_MAX / 1000, max_jitter=0.4
        )
        super().__init__(handler=_Handler(bridge), connection_retry=retry, logger=_kazoo_log, **options)
        self._inbox = inbox
        self._bridge = bridge
        self._connection = _Connection(self, inbox, bridge, self._conn_retry.copy())

    def end(self, *, closes: bool) -> None:
        """Close the session, waiting CLOSE_SECONDS_MAX for the server, or leave it; end the thread."""
        connection = self._connection
        if not closes:
            self._stopped.set()
            if connection._socket is not None:
                with contextlib.suppress(OSError):
                    connection._socket.shutdown(socket.SHUT_RDWR)
        elif not self._stopped.is_set():
            self._stopped.set()
            self._queue.append((CloseInstance, None))
            with contextlib.suppress(OSError):
                connection._write_sock.send(b"\0")
        if not connection.connection_stopped.wait(CLOSE_SECONDS_MAX) and connection._socket is not None:
            with contextlib.suppress(OSError):
                connection._socket.shutdown(socket.SHUT_RDWR)
        self._safe_close()
        self.close()

    def _session_callback(self, state: str) -> None:
        if state == self._state:
            return
        listener = self._inbox.listener
        if state in _OVER:
            self._stopped.set()  # else kazoo begins another session
            self._inbox.post(partial(listener.on_over, state))
        elif self._state == KeeperState.CONNECTED and self._bridge.is_movable:
            self._stopped.set()
            self._inbox.post(partial(listener.on_over, state))
        elif state == KeeperState.CONNECTING:
            self._inbox.post(listener.on_disconnected)
        super()._session_callback(state)


def _reason(error: Exception, *, was_accepted: bool) -> str:
    text = str(error).removeprefix("socket connection error: ")
    if was_accepted:
        return f"it accepts connections but grants no session ({text})"
    return "no answer" if text in ("", "None", "timed out") else text
