"""kazoo over any metadata store: kazoo's own client and recipes, unmodified, without a ZooKeeper server.

The client is kazoo's ``KazooClient`` with another connection: its handler connects it, through a socket pair in this
process, to an endpoint (``metadata/endpoint``) that serves this one client from the store. Every call, retry, state,
watch and recipe therefore behaves as kazoo documents it, and no port is opened.

    client = StoreKazooClient("etcd://127.0.0.1:2379/app")
    client.start()
    with client.Lock("/locks/one"):
        ...
    client.stop()
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from typing_extensions import override

from heliograph.base.loop_thread import LoopThread
from heliograph.metadata.connect import connect_store
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.store import MetadataStore

PLACEHOLDER_HOST = "127.0.0.1:2181"  # kazoo requires a host; nothing is sent there


class _EndpointThread(LoopThread):
    """The event loop, on its own thread, that serves all clients of this process while there is one."""

    _lock = threading.Lock()
    _current: _EndpointThread | None = None

    def __init__(self) -> None:
        super().__init__("metadata-kazoo")
        self._users = 0

    @classmethod
    def join_in(cls) -> _EndpointThread:
        """Return the running thread, started if needed. The caller must ``leave`` it."""
        with cls._lock:
            if cls._current is None:
                cls._current = cls()
            cls._current._users += 1
            return cls._current

    def leave(self) -> None:
        """Release the thread; the last caller stops it."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            if _EndpointThread._current is self:
                _EndpointThread._current = None
        self.close()


@atexit.register
def _end_at_exit() -> None:
    if _EndpointThread._current is not None:
        _EndpointThread._current.stop()


def _forget_in_child() -> None:
    """Reset the thread in a forked child, which inherits the parent's loop but not its thread."""
    _EndpointThread._current = None
    _EndpointThread._lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


class _PrivateEndpoint:
    """An endpoint that serves one client, while the client is started."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._thread: _EndpointThread | None = None
        self._endpoint: ZooKeeperEndpoint | None = None

    def start(self) -> None:
        """Connect to the store. Idempotent."""
        with self._lock:
            if self._thread is not None:
                return
            thread = _EndpointThread.join_in()
            try:
                self._endpoint = thread.run(self._serve())
            except BaseException:
                thread.leave()
                raise
            self._thread = thread

    def stop(self) -> None:
        """End the sessions. Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
            endpoint, self._endpoint = self._endpoint, None
        if thread is None or endpoint is None:
            return
        try:
            thread.run(endpoint.stop(ends_sessions=True))
        finally:
            thread.leave()

    def connect(self) -> socket.socket:
        """Return a socket whose other end is served."""
        with self._lock:
            if self._thread is None or self._endpoint is None:
                raise ConnectionRefusedError("the client is not started")
            ours, theirs = socket.socketpair()
            try:
                self._thread.run(self._endpoint.adopt(theirs))
            except BaseException:
                ours.close()
                theirs.close()
                raise
        return _WireSocket(fileno=ours.detach())

    async def _serve(self) -> ZooKeeperEndpoint:
        endpoint = ZooKeeperEndpoint(self._open)
        await endpoint.start()
        return endpoint

    async def _open(self, timeout_ms: int, token: str | None) -> MetadataStore:
        return await connect_store(self._url, session_timeout_ms=timeout_ms, token=token)


class _WireSocket(socket.socket):
    """One end of a socket pair; kazoo asks for the peer's address to send four-letter words there."""

    @override
    def getpeername(self) -> tuple[str, int]:
        host, _, port = PLACEHOLDER_HOST.partition(":")
        return host, int(port)


class _WireHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threading handler, whose connections lead to the endpoint."""

    def __init__(self, endpoint: _PrivateEndpoint) -> None:
        super().__init__()
        self._endpoint = endpoint

    @override
    def create_connection(self, *args: Any, **kwargs: Any) -> socket.socket:
        return self._endpoint.connect()  # whatever address is asked for


class StoreKazooClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A ``KazooClient`` on a metadata store.

    As with kazoo's own clients, a forked child must create another client.
    """

    def __init__(self, url: str, **options: Any) -> None:
        """
        Args:
            url: the store's URL, as in ``connect_store``; its path is the client's root.
            options: options of ``KazooClient``: timeout, default_acl, auth_data, connection_retry, command_retry,
                logger, ... except hosts, handler, client_id and TLS, which have no meaning here.
        """
        self._private_endpoint = _PrivateEndpoint(url)
        super().__init__(hosts=PLACEHOLDER_HOST, handler=_WireHandler(self._private_endpoint), **options)

    @override
    def start_async(self) -> Any:
        """Start the client, and raise HeliographError, saying why, when the store cannot be used."""
        self._private_endpoint.start()
        return super().start_async()

    @override
    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._private_endpoint.stop()
