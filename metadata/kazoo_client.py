"""kazoo over any metadata store: kazoo's own client and recipes, unmodified, with no ZooKeeper anywhere.

The client is kazoo's ``KazooClient`` itself. What is exchanged is the wire: its handler connects it, through a pair of
sockets of this process, to an endpoint (``metadata/endpoint``) that serves this one client from the store. So every
call, retry, state, watch and recipe behaves as kazoo documents it, and no port is open to anybody else.

    client = StoreKazooClient("etcd://127.0.0.1:2379/app")
    client.start()
    with client.Lock("/locks/one"):
        ...
    client.stop()
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

from metadata.connect import connect_store
from metadata.endpoint.endpoint import ZooKeeperEndpoint
from metadata.store import MetadataStore

T = TypeVar("T")

PLACEHOLDER_HOST = "127.0.0.1:2181"  # kazoo wants a host; nothing is ever sent there
_JOIN_SECONDS_MAX = 2


class _LoopThread:
    """The event loop that serves all clients of this process, on a thread of its own while there are any."""

    _lock = threading.Lock()
    _current: _LoopThread | None = None

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._users = 0
        self._thread = threading.Thread(target=self._run, name="metadata-kazoo", daemon=True)
        self._thread.start()

    @classmethod
    def join_in(cls) -> _LoopThread:
        """The running one; ``leave`` has to follow."""
        with cls._lock:
            if cls._current is None:
                cls._current = cls()
            cls._current._users += 1
            return cls._current

    def leave(self) -> None:
        """The caller needs the thread no more; the last one ends it."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            if _LoopThread._current is self:
                _LoopThread._current = None
        self.end()

    def end(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_SECONDS_MAX)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()


@atexit.register
def _end_at_exit() -> None:
    if _LoopThread._current is not None:
        _LoopThread._current.end()


def _forget_in_child() -> None:
    """A forked child has the parent's loop but not its thread; like kazoo's own, its clients start anew."""
    _LoopThread._current = None
    _LoopThread._lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


class _Wire:
    """An endpoint for one client, while it is started."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._endpoint: ZooKeeperEndpoint | None = None

    def start(self) -> None:
        """Reach the store. Idempotent."""
        with self._lock:
            if self._thread is not None:
                return
            thread = _LoopThread.join_in()
            try:
                self._endpoint = thread.run(self._serve())
            except BaseException:
                thread.leave()
                raise
            self._thread = thread

    def stop(self) -> None:
        """End the sessions that still stand. Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
            endpoint, self._endpoint = self._endpoint, None
        if thread is None or endpoint is None:
            return
        try:
            thread.run(endpoint.stop())
        finally:
            thread.leave()

    def connect(self) -> socket.socket:
        """A socket whose other end is served."""
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

    async def _open(self, timeout_ms: int) -> MetadataStore:
        return await connect_store(self._url, session_timeout_ms=timeout_ms)


class _WireSocket(socket.socket):
    """One end of a pair; kazoo asks for the peer's address to send four-letter words there."""

    def getpeername(self) -> tuple[str, int]:
        """An address that the handler takes for the endpoint's."""
        host, _, port = PLACEHOLDER_HOST.partition(":")
        return host, int(port)


class _WireHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threading handler, but for where connections lead."""

    def __init__(self, wire: _Wire) -> None:
        super().__init__()
        self._wire = wire

    def create_connection(self, *args: Any, **kwargs: Any) -> socket.socket:
        """A connection to the endpoint, whatever address is asked for."""
        return self._wire.connect()


class StoreKazooClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A ``KazooClient`` on a metadata store.

    As with kazoo's own, a forked child needs a client of its own.
    """

    def __init__(self, url: str, **options: Any) -> None:
        """
        Args:
            url: of the store, as in ``connect_store``; its path is the client's root.
            options: of ``KazooClient``: timeout, default_acl, auth_data, connection_retry, command_retry, logger, ...
                but neither hosts, handler, client_id nor TLS, which have no meaning here.
        """
        self._wire = _Wire(url)
        super().__init__(hosts=PLACEHOLDER_HOST, handler=_WireHandler(self._wire), **options)

    def start_async(self) -> Any:
        """See KazooClient.

        Raises:
            HeliographError: the store cannot be used; says why.
        """
        self._wire.start()
        return super().start_async()

    def stop(self) -> None:
        """See KazooClient."""
        try:
            super().stop()
        finally:
            self._wire.stop()
