"""The endpoint: a listener, its connections and sessions, and the timer that expires them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from typing_extensions import override

from heliograph.auth.audit import AuditLog
from heliograph.auth.authenticator import Authenticator
from heliograph.auth.config import AuthConfig
from heliograph.base.errors import HeliographError, ResourceError
from heliograph.base.guard.listener import ListenerGuard
from heliograph.base.tls.contexts import ServerTls
from heliograph.metadata.endpoint.limits import CLOSE_MS_MAX, TICK_MS, EndpointLimits
from heliograph.metadata.endpoint.serving.connection import EndpointConnection, Host
from heliograph.metadata.endpoint.session.acl_directory import AclDirectory
from heliograph.metadata.endpoint.session.reaper import ContainerReaper
from heliograph.metadata.endpoint.session.sessions import OpenStore, SessionTable
from heliograph.metadata.endpoint.session.statistics import Facts, Statistics, answer
from heliograph.metadata.endpoint.session.store_session import EndpointStoreSession

ACCEPT_BACKLOG = 128

log = logging.getLogger(__name__)


class ZooKeeperEndpoint(Host):
    """A server of ZooKeeper's client protocol on a metadata store. ``start`` once, ``stop`` once, on one loop."""

    def __init__(
        self,
        open_store: OpenStore,
        *,
        limits: EndpointLimits | None = None,
        auth: AuthConfig | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """
        Args:
            open_store: opens a session with the store, or takes one over.
            auth: the rights of callers; None: authentication is disabled.
            audit: gets a line for each refused caller.

        Raises:
            InvalidConfigError: a key of ``auth`` cannot be used; names the setting.
        """
        self.authenticator = Authenticator(auth or AuthConfig())
        self._audit = audit
        if audit is not None:
            self.authenticator.on_refused = audit.login_refused
        self._limits = limits or EndpointLimits()
        self._connections: set[EndpointConnection] = set()
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._stopping = False
        self.address = ""
        self.directory = AclDirectory()
        self.reaper = ContainerReaper(self.directory, self._limits)
        self.statistics = Statistics()
        self.sessions = SessionTable(open_store, self._limits, self.now_ms)
        self.guard = ListenerGuard("the ZooKeeper endpoint", self._limits.listener)
        on_revoked = self.authenticator.revoke if self.authenticator.config.is_enabled else None
        self._store_session = EndpointStoreSession(open_store, self.directory, self._abort_connections, on_revoked)

    async def start(self) -> None:
        """Connect to the store. Clients are served after ``listen`` or ``adopt``.

        Raises:
            MetadataError: the store cannot be used; says why.
        """
        await self._store_session.start()
        if self._audit is not None:
            self._audit.start()
        self._ticker = asyncio.get_running_loop().create_task(self._tick_forever())
        self._reaping = asyncio.get_running_loop().create_task(self._reap_forever())

    async def listen(self, host: str, port: int, *, tls: ServerTls | None = None) -> str:
        """Accept connections on a TCP port, 0 for a free one. Return the address, ``host:port``.

        Args:
            tls: for the connections; the certificate is read again when its files change. None: they are plain.

        Raises:
            ResourceError: the port cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: EndpointConnection(self),
                host,
                port,
                backlog=ACCEPT_BACKLOG,
                reuse_address=True,
                ssl=None if tls is None else tls.context,
            )
        except OSError as error:
            reason = "the port is in use" if error.errno == errno.EADDRINUSE else str(error)
            raise ResourceError(f"the ZooKeeper endpoint cannot listen on {host}:{port}: {reason}", field="port") from (
                error
            )
        bound: int = self._listener.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        log.info("the ZooKeeper endpoint listens on %s", self.address)
        return self.address

    async def adopt(self, connected: socket.socket) -> None:
        """Serve a client at the other end of a connected socket."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: EndpointConnection(self), connected)

    async def stop(self, *, ends_sessions: bool = False) -> None:
        """Close the connections. The sessions last until their timeout: clients may continue at another endpoint.

        Args:
            ends_sessions: end them now, and delete their ephemerals.
        """
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        tasks = [task for task in (self._ticker, self._reaping) if task is not None]
        self.authenticator.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        connections = list(self._connections)
        self._abort_connections()
        self.guard.close()
        try:
            async with asyncio.timeout(CLOSE_MS_MAX / 1000):
                await self.sessions.stop(ends_sessions=ends_sessions)
                await asyncio.gather(*(connection.wait_done() for connection in connections))
                await self._store_session.stop()
        except TimeoutError:
            log.warning("some sessions were not ended in time; the store ends them at their timeout")
        if self._audit is not None:
            await self._audit.stop()

    def facts(self) -> Facts:
        sessions = list(self.sessions)
        return Facts(
            is_ready=self._store_session.is_ready,
            address=self.address,
            zxid=max((session.zxid for session in sessions), default=0),
            connections=tuple(connection.facts() for connection in self._connections),
            sessions=len(sessions),
            expired_sessions=self.sessions.expired,
            moved_sessions=self.sessions.moved,
            watches=sum(len(session.watches) for session in sessions),
            acls=len(self.directory),
            session_timeout_ms_min=self._limits.session_timeout_ms_min,
            session_timeout_ms_max=self._limits.session_timeout_ms_max,
            connections_max=self._limits.connections_per_address_max,
            unfinished_bytes=self.guard.unfinished_bytes,
            unfinished_closed=self.guard.unfinished_closed,
        )

    @override
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    @override
    def on_connected(self, connection: EndpointConnection) -> bool:
        # A connection is accepted also while the store is unreachable: four-letter words are answered then.
        if self._stopping or not self.guard.admit(connection.address):  # I15
            self.statistics.refused_connections += 1
            return False
        self._connections.add(connection)
        return True

    @override
    def on_disconnected(self, connection: EndpointConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.guard.leave(connection.address)

    @property
    @override
    def is_ready(self) -> bool:
        return self._store_session.is_ready and not self._stopping

    @override
    def answer_word(self, word: bytes) -> str:
        return answer(word, self.facts(), self.statistics)

    def _abort_connections(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _reap_forever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.container_check_ms / 1000)
            if not self.is_ready:
                continue
            try:
                await self.reaper.reap(self._store_session.store)
            except HeliographError as error:
                log.warning("containers were not looked for: %s", error)

    async def _tick_forever(self) -> None:
        last = self.now_ms()
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now = self.now_ms()
            late_ms = now - last - TICK_MS
            if late_ms > TICK_MS:
                # The loop was blocked: requests of clients may wait unread, so this time does not count as silence.
                self.sessions.postpone_expiry(late_ms)
            last = now
            for connection in self._connections:
                if connection.waits_for_room and connection.session is not None:
                    connection.session.touch(now)  # it is not read, so its silence means nothing
            self.sessions.expire()
            for connection in list(self._connections):
                if not connection.is_established and now - connection.opened_ms > self._limits.handshake_ms_max:
                    connection.abort()
                elif connection.caller is not None and connection.caller.has_expired:
                    log.info("closing the connection of %s, whose token has ended or was revoked", connection.peer)
                    connection.abort()
