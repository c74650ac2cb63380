"""The embedded metadata server: one directory, one address, one tree. It is a single point of failure.

While it is down no ownership changes and no session begins. Its earlier answers are still true when it is back.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from pathlib import Path
from typing import Any

from heliograph.base.completion import end_task
from heliograph.base.errors import InvalidConfigError, ResourceError
from heliograph.base.guard.handshake import check_secret
from heliograph.base.interval import until_tick
from heliograph.base.peer import host_and_port, is_loopback
from heliograph.base.tls.contexts import ServerTls
from heliograph.metadata.backends.embedded.limits import (
    EXPIRY_TICK_MS,
    EXPIRY_WAIT_MS_MAX,
    SESSIONLESS_MS_MAX,
    ServerLimits,
)
from heliograph.metadata.backends.embedded.server.connection import EmbeddedConnection
from heliograph.metadata.backends.embedded.server.directory import ServerDirectory
from heliograph.metadata.backends.embedded.server.nodes import StoredNodes
from heliograph.metadata.backends.embedded.server.service import Service
from heliograph.metadata.backends.embedded.server.storage import TreeStorage
from heliograph.metadata.tree import ZnodeTree
from heliograph.metrics.coordination import METADATA_METRICS
from heliograph.metrics.history import History, keep_history

LOCK_WAIT_MS = 5_000  # for a predecessor that is ending
ACCEPT_BACKLOG = 128

log = logging.getLogger(__name__)


class EmbeddedServer:
    """The server of the store in one directory. It is started once and stopped once."""

    def __init__(
        self,
        directory: Path,
        host: str,
        port: int = 0,
        *,
        first_port: int = 0,
        advertised_host: str = "",
        secret: str | None = None,
        limits: ServerLimits | None = None,
        lock_wait_ms: int = LOCK_WAIT_MS,
        tls: ServerTls | None = None,
    ) -> None:
        """
        Args:
            directory: created if it is missing; holds all files of the store.
            host: the address to listen on.
            advertised_host: the host that clients are given; empty: ``host``.
            port: 0: a free port is chosen at the first start and kept at every later start.
            first_port: the port for the first start if ``port`` is 0; 0: the system chooses.
            secret: the cluster's secrets, one per line; clients have to prove one. None: no secret, on loopback
                addresses only.
            lock_wait_ms: how long ``start`` waits for another server to release the directory.
            tls: of the listener; None: connections are plain.

        Raises:
            InvalidConfigError: the secret is too short, or it is missing and other machines can reach the store.
        """
        self._tls = tls
        self._directory_path = directory
        self._host = host
        self._advertised_host = advertised_host or host
        self._port = port
        self._first_port = first_port
        check_secret(secret)
        if secret is None and not is_loopback(host):
            raise InvalidConfigError(
                f"a metadata store on {host} is reached from other machines: give the cluster a secret",
                field="cluster_secret",
                limit="without a secret only loopback addresses",
            )
        self._secret = secret
        self._limits = limits or ServerLimits()
        self._lock_wait_ms = lock_wait_ms
        self._directory: ServerDirectory | None = None
        self._storage: TreeStorage | None = None
        self._service: Service | None = None
        self._listener: asyncio.Server | None = None
        self._expiry: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.history = History()
        self.failed = asyncio.Event()  # set when a write has failed: the server answers no more
        self.failure: Exception | None = None

    @property
    def address(self) -> str:
        """``host:port``, once started."""
        assert self._listener is not None, "the server is started"
        return host_and_port(self._advertised_host, self._port)

    async def start(self) -> None:
        """Lock the directory, open the store and listen.

        Every session of the store gets its full timeout from now on.

        Raises:
            ResourceError: the directory or the port cannot be used; nothing is left behind.
            RecordError: the store is damaged or from a newer version.
        """
        assert self._service is None, "a server is started once"
        loop = asyncio.get_running_loop()
        try:
            self._directory = await asyncio.to_thread(ServerDirectory, self._directory_path, self._lock_wait_ms)
            kept_port = await asyncio.to_thread(self._directory.read_port)
            listening = await asyncio.to_thread(self._bind, self._port or kept_port or self._first_port)
            self._port = listening.getsockname()[1]
            try:
                tree, nodes = await asyncio.to_thread(self._load)
            except BaseException:
                listening.close()
                raise
            if self._port != kept_port:
                await asyncio.to_thread(self._directory.write_port, self._port)
        except BaseException:
            await self.stop()
            raise
        assert self._storage is not None, "loaded"
        for session_id in tree.sessions:
            tree.touch(session_id, self._now_ms())
        service = self._service = Service(tree, nodes, self._storage, self._limits, self._now_ms, self._fail)
        self._listener = await loop.create_server(
            lambda: EmbeddedConnection(service, self._secret),
            sock=listening,
            backlog=ACCEPT_BACKLOG,
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else SESSIONLESS_MS_MAX / 1000,
        )
        self._expiry = loop.create_task(self._expire_forever(service))
        self._keeping = loop.create_task(keep_history(self.history, METADATA_METRICS, self.statistics))
        log.info("metadata of %s served at %s", self._directory_path, self.address)

    async def stop(self) -> None:
        """Stop serving once all changes are durable.

        Sessions remain, and get their full timeout at the next start.
        """
        await end_task(self._keeping)
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.wait([self._expiry])
        if self._listener is not None:
            self._listener.close()
        if self._service is not None:
            for connection in list(self._service.connections):
                connection.abort()
            self._service.guard.close()
            await self._service.stop()
        if self._listener is not None:
            await self._listener.wait_closed()
        if self._storage is not None:
            await asyncio.to_thread(self._storage.close)
            self._storage = None
        if self._directory is not None:
            self._directory.release()
            self._directory = None

    def statistics(self) -> dict[str, Any]:
        """Return counts of the nodes and sessions that the server holds, and of its work since its start."""
        assert self._service is not None, "the server is started"
        assert self._storage is not None, "the server is started"
        service = self._service
        return {
            "nodes": len(service.tree.nodes),
            "cache_bytes": service.nodes.cache_bytes + self._storage.memory_bytes,
            "disk_waits": service.disk_waits,
            "sessions": len(service.tree.sessions),
            "connections": len(service.connections),
            "connections_refused": service.guard.refused,
            "unfinished_bytes": service.guard.unfinished_bytes,
            "unfinished_closed": service.guard.unfinished_closed,
            "watches": service.watches,
            "zxid": service.tree.zxid,
            "transactions": service.committer.transactions,
            "commits": service.committer.commits,
            "held_bytes": service.committer.held_bytes,
            "commit_latency": service.committer.latency.told(),
        }

    def _load(self) -> tuple[ZnodeTree, StoredNodes]:
        assert self._directory is not None, "the directory is ours"
        self._storage = TreeStorage(self._directory.database)
        state = self._storage.load()
        if state.is_rebuilt and state.zxid:
            log.info("made the index of %d nodes in %s", state.nodes, self._directory_path)
        nodes = StoredNodes(self._storage, state.nodes)
        return ZnodeTree(nodes, state.zxid, state.sessions), nodes

    def _bind(self, port: int) -> socket.socket:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICSERV
            )[0]
            listening = socket.socket(family, kind, protocol)
        except OSError as error:
            raise ResourceError(f"cannot listen on {self._host}: {error}", field="host") from error
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind(address)
            listening.listen(ACCEPT_BACKLOG)
        except OSError as error:
            listening.close()
            reason = "it is taken" if error.errno == errno.EADDRINUSE else str(error)
            raise ResourceError(
                f"metadata cannot listen on {self._host}:{port}: {reason}; end that program, or name another "
                "port (clients will need the new address)",
                field="port",
            ) from error
        return listening

    async def _expire_forever(self, service: Service) -> None:
        wait_ms_max = min(EXPIRY_WAIT_MS_MAX, self._limits.session_timeout_ms_min)
        while True:
            begun = self._now_ms()
            due_ms = service.tree.first_deadline_ms()
            wait_ms = wait_ms_max if due_ms is None else min(wait_ms_max, max(EXPIRY_TICK_MS, due_ms - begun))
            wait_ms = min(wait_ms, round(1000 * until_tick(wait_ms_max / 1000)))
            await asyncio.sleep(wait_ms / 1000)
            late_ms = self._now_ms() - begun - wait_ms
            if late_ms > EXPIRY_TICK_MS:
                # The process did not run: pings may wait unread, so this time does not count against the sessions.
                service.tree.postpone_expiry(late_ms)
            service.expire_sessions()

    def _fail(self, error: Exception) -> None:
        log.critical("the metadata store cannot be written and stops: %s", error)
        self.failure = error
        if self._expiry is not None:
            self._expiry.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._service is not None:
            for connection in list(self._service.connections):
                connection.abort()
        self.failed.set()

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)
