"""The listener for clients that speak Pulsar's binary protocol."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection

from heliograph.actors.broker.broker_context import BrokerContext
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.protocol.ack_commands import AckCommands
from heliograph.actors.broker.protocol.admin_commands import AdminCommands, RunOperation
from heliograph.actors.broker.protocol.auth_commands import AuthCommands
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.actors.broker.protocol.consumer_commands import ConsumerCommands
from heliograph.actors.broker.protocol.lookup_commands import LookupCommands
from heliograph.actors.broker.protocol.producer_commands import ProducerCommands
from heliograph.actors.broker.protocol.refused_commands import RefusedCommands
from heliograph.actors.broker.protocol.schema_commands import SchemaCommands
from heliograph.actors.broker.protocol.watch_commands import WatchCommands
from heliograph.base.errors import ResourceError
from heliograph.base.guard.listener import ListenerGuard, UnsentBudget
from heliograph.base.guard.local_socket import LocalListener
from heliograph.base.tls.contexts import ServerTls

LISTEN_BACKLOG = 1_024  # connections not accepted yet


class PulsarServer:
    """The listener of one broker. ``bind`` takes the port and ``start`` accepts clients, because the broker has to
    register its address before it serves.

    Args:
        config: ``port`` is that of the plain listener, which ``tls_only`` leaves out; ``tls_port`` that of the listener
            for TLS, which needs ``tls``.
    """

    def __init__(self, config: BrokerConfig, tls: ServerTls | None = None) -> None:
        assert not config.tls_only or (config.tls_port is not None and tls is not None), "there is a listener"
        self._host = config.host
        self._wanted_port = None if config.tls_only else config.port
        self._wanted_tls_port = config.tls_port
        self._tls = tls
        self._handshake_seconds = config.connect_ms_max / 1000
        self.guard = ListenerGuard(config.broker_id, config.listener)
        self.unsent = UnsentBudget(config.connection_write_bytes_max)
        self.local = LocalListener(config.broker_id, self._connected)
        self._is_local = config.local_sockets and tls is None
        self._advertised_host = config.advertised_host
        self._server: asyncio.Server | None = None
        self._tls_server: asyncio.Server | None = None
        self._context: BrokerContext | None = None
        self._run: RunOperation | None = None
        self._connections: set[PulsarConnection] = set()
        self._is_stopped = False
        self.connections_total = 0

    @property
    def port(self) -> int | None:
        """The port without TLS, None if it is closed."""
        return _port_of(self._server)

    @property
    def tls_port(self) -> int | None:
        """The port for TLS, None without TLS."""
        return _port_of(self._tls_server)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def open_connections(self) -> Collection[PulsarConnection]:
        """The open connections. They come and go while the loop turns."""
        return self._connections

    async def bind(self) -> None:
        """Take the port, and the port for TLS if there is one.

        Raises:
            ResourceError: a port is in use or not allowed.
        """
        if self._wanted_port is not None:
            self._server = await self._listen(self._wanted_port, "port", None)
            if self._is_local and (port := self.port) is not None:
                await self.local.listen(self._host, port, self._advertised_host, LISTEN_BACKLOG)
        if self._tls is not None and self._wanted_tls_port is not None:
            try:
                self._tls_server = await self._listen(self._wanted_tls_port, "tls_port", self._tls.context)
            except BaseException:
                if self._server is not None:
                    self._server.close()
                raise

    async def start(self, context: BrokerContext, run: RunOperation) -> None:
        """Accept clients.

        Args:
            run: runs an operation of the administration.
        """
        assert self._listeners, "bind comes first"
        self._context, self._run = context, run
        for server in self._listeners:
            await server.start_serving()
        await self.local.start_serving()

    async def _listen(self, port: int, field: str, tls: ssl.SSLContext | None) -> asyncio.Server:
        try:
            return await asyncio.get_running_loop().create_server(
                self._connected,
                self._host,
                port,
                backlog=LISTEN_BACKLOG,
                start_serving=False,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._handshake_seconds,
            )
        except OSError as error:
            raise ResourceError(
                f"cannot listen on {self._host}:{port}: {error.strerror or error}; choose another port", field=field
            ) from error

    async def stop(self) -> None:
        """Accept no more clients and close every connection."""
        self._is_stopped = True
        servers = self._listeners
        for server in servers:
            server.close()
        self.local.close()
        self.hang_up()
        self.guard.close()
        for server in servers:
            await server.wait_closed()

    @property
    def _listeners(self) -> list[asyncio.Server]:
        return [server for server in (self._server, self._tls_server) if server is not None]

    def hang_up(self) -> None:
        """Close every connection after writing what waits to be written."""
        for connection in list(self._connections):
            connection.close()

    def _connected(self) -> PulsarConnection:
        assert self._context is not None, "clients are accepted by start"
        assert self._run is not None, "it comes with the context"
        connection = PulsarConnection(self._context, self.guard, self.unsent, self._admit, self._closed)
        AuthCommands(connection)
        LookupCommands(connection)
        ProducerCommands(connection)
        AckCommands(connection, ConsumerCommands(connection))
        SchemaCommands(connection)
        WatchCommands(connection)
        AdminCommands(connection, self._run)
        RefusedCommands(connection)
        return connection

    def _admit(self, connection: PulsarConnection) -> bool:
        """Count a connection whose socket is open. Return False if there are too many, or the listener was stopped.

        A client that fails in the handshake of TLS never gets here, and asyncio does not report its end.
        """
        assert self._context is not None, "clients are accepted by start"
        self.connections_total += 1
        if self._is_stopped:
            return False
        if not self.guard.admit(connection.address):  # I15
            return False
        self._connections.add(connection)
        return True

    def _closed(self, connection: PulsarConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.guard.leave(connection.address)


def _port_of(server: asyncio.Server | None) -> int | None:
    if server is None:
        return None
    port: int = server.sockets[0].getsockname()[1]
    return port
