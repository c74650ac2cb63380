"""The endpoint: a listener, its connections and sessions, and the clock that ends them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from heliograph.errors import ResourceError
from metadata.endpoint.acl_directory import AclDirectory
from metadata.endpoint.connection import Connection
from metadata.endpoint.limits import CLOSE_MS_MAX, TICK_MS, EndpointLimits
from metadata.endpoint.sessions import OpenStore, SessionTable
from metadata.endpoint.statistics import Facts, Statistics, answer
from metadata.endpoint.warden import Warden

ACCEPT_BACKLOG = 128

_log = logging.getLogger(__name__)


class ZooKeeperEndpoint:
    """Speaks ZooKeeper's client protocol for a metadata store. ``start`` once, ``stop`` once, on one loop."""

    def __init__(self, open_store: OpenStore, *, limits: EndpointLimits | None = None) -> None:
        """
        Args:
            open_store: opens a session with the store, of a timeout in milliseconds.
        """
        self._limits = limits or EndpointLimits()
        self._connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._stopping = False
        self.address = ""
        self.directory = AclDirectory()
        self.statistics = Statistics()
        self.sessions = SessionTable(open_store, self._limits, self.now_ms)
        self._warden = Warden(open_store, self.directory, self._abort_connections)

    async def start(self) -> None:
        """Reach the store; clients come by ``listen`` or ``adopt``.

        Raises:
            MetadataError: the store cannot be used; says why.
        """
        await self._warden.start()
        self._ticker = asyncio.get_running_loop().create_task(self._tick_forever())

    async def listen(self, host: str, port: int) -> str:
        """Take connections on a TCP port, 0 for a free one: the address, ``host:port``.

        Raises:
            ResourceError: the port cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: Connection(self), host, port, backlog=ACCEPT_BACKLOG, reuse_address=True
            )
        except OSError as error:
            reason = "it is taken" if error.errno == errno.EADDRINUSE else str(error)
            raise ResourceError(f"the ZooKeeper endpoint cannot listen on {host}:{port}: {reason}", field="port") from (
                error
            )
        bound: int = self._listener.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        _log.info("ZooKeeper's protocol is spoken at %s", self.address)
        return self.address

    async def adopt(self, connected: socket.socket) -> None:
        """Serve a client at the other end of a connected socket."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self), connected)

    async def stop(self) -> None:
        """Close the connections and end all sessions: their ephemerals go now, not when their time is up."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait([self._ticker])
        connections = list(self._connections)
        self._abort_connections()
        try:
            async with asyncio.timeout(CLOSE_MS_MAX / 1000):
                await self.sessions.stop()
                await asyncio.gather(*(connection.wait_done() for connection in connections))
                await self._warden.stop()
        except TimeoutError:
            _log.warning("some sessions were not ended in time; the store ends them when their time is up")

    def facts(self) -> Facts:
        """What the endpoint is and holds now."""
        sessions = list(self.sessions)
        return Facts(
            is_ready=self._warden.is_ready,
            address=self.address,
            zxid=max((session.zxid for session in sessions), default=0),
            connections=tuple((connection.peer, connection.waiting) for connection in self._connections),
            sessions=len(sessions),
            expired_sessions=self.sessions.expired,
            watches=sum(len(session.board) for session in sessions),
            acls=len(self.directory),
            session_timeout_ms_min=self._limits.session_timeout_ms_min,
            session_timeout_ms_max=self._limits.session_timeout_ms_max,
            connections_max=self._limits.connections_max,
        )

    def now_ms(self) -> int:
        """See Host."""
        return int(asyncio.get_running_loop().time() * 1000)

    def on_connected(self, connection: Connection) -> bool:
        """See Host. While the store is out of reach a connection is only good for a four-letter word."""
        if self._stopping or len(self._connections) >= self._limits.connections_max:  # I15
            self.statistics.refused_connections += 1
            return False
        self._connections.add(connection)
        return True

    def on_disconnected(self, connection: Connection) -> None:
        """See Host."""
        self._connections.discard(connection)

    @property
    def is_ready(self) -> bool:
        """See Host."""
        return self._warden.is_ready and not self._stopping

    def answer_word(self, word: bytes) -> str:
        """See Host."""
        return answer(word, self.facts(), self.statistics)

    def _abort_connections(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _tick_forever(self) -> None:
        last = self.now_ms()
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now = self.now_ms()
            late_ms = now - last - TICK_MS
            if late_ms > TICK_MS:
                # We slept through it: what clients sent may wait unread, so the time does not count against them.
                self.sessions.postpone_expiry(late_ms)
            last = now
            self.sessions.expire()
            for connection in list(self._connections):
                if not connection.is_admitted and now - connection.opened_ms > self._limits.handshake_ms_max:
                    connection.abort()
