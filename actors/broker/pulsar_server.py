"""The listener for clients that speak Pulsar's binary protocol."""

from __future__ import annotations

import asyncio
import logging
import ssl

from actors.broker.ack_commands import AckCommands
from actors.broker.broker_context import BrokerContext
from actors.broker.connection import Connection
from actors.broker.consumer_commands import ConsumerCommands
from actors.broker.lookup_commands import LookupCommands
from actors.broker.producer_commands import ProducerCommands
from actors.broker.refused_commands import RefusedCommands
from actors.broker.schema_commands import SchemaCommands
from actors.broker.tls import ServerTls
from heliograph.errors import ResourceError

LISTEN_BACKLOG = 1_024  # connections not accepted yet

log = logging.getLogger(__name__)


class PulsarServer:
    """Accepts connections for one broker. The socket is bound by ``bind``, clients are let in by ``start``, because the
    broker has to register its address before it serves."""

    def __init__(self, host: str, port: int, tls_port: int | None = None, tls: ServerTls | None = None) -> None:
        self._host = host
        self._wanted_port = port
        self._wanted_tls_port = tls_port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tls_server: asyncio.Server | None = None
        self._context: BrokerContext | None = None
        self._connections: set[Connection] = set()
        self.connections_total = 0

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        assert self._server is not None, "the listener is bound"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def tls_port(self) -> int | None:
        """The port for TLS, None when there is none."""
        if self._tls_server is None:
            return None
        port: int = self._tls_server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def bind(self) -> None:
        """Take the port, and the one for TLS.

        Raises:
            ResourceError: it is in use or not allowed.
        """
        self._server = await self._listen(self._wanted_port, "port", None)
        if self._tls is not None and self._wanted_tls_port is not None:
            try:
                self._tls_server = await self._listen(self._wanted_tls_port, "tls_port", self._tls.context)
            except BaseException:
                self._server.close()
                raise

    async def start(self, context: BrokerContext) -> None:
        """Let clients in."""
        assert self._server is not None, "the listener is bound"
        self._context = context
        await self._server.start_serving()
        if self._tls_server is not None:
            await self._tls_server.start_serving()

    async def _listen(self, port: int, field: str, tls: ssl.SSLContext | None) -> asyncio.Server:
        try:
            return await asyncio.get_running_loop().create_server(
                self._connected, self._host, port, backlog=LISTEN_BACKLOG, start_serving=False, ssl=tls
            )
        except OSError as error:
            raise ResourceError(
                f"cannot listen on {self._host}:{port}: {error.strerror or error}; choose another port", field=field
            ) from error

    async def stop(self) -> None:
        """Take no more clients and hang up on those there are."""
        if self._server is None:
            return
        servers = [server for server in (self._server, self._tls_server) if server is not None]
        for server in servers:
            server.close()
        self.hang_up()
        for server in servers:
            await server.wait_closed()

    def hang_up(self) -> None:
        """Close every connection, after what is waiting to be written."""
        for connection in list(self._connections):
            connection.close()

    def _connected(self) -> Connection:
        assert self._context is not None, "clients are let in by start"
        connection = Connection(self._context, self._connections.discard)
        LookupCommands(connection)
        ProducerCommands(connection)
        AckCommands(connection, ConsumerCommands(connection))
        SchemaCommands(connection)
        RefusedCommands(connection)
        if len(self._connections) >= self._context.config.connections_max:
            log.warning("connection refused: there are %d", len(self._connections))
            connection.refuse()
        self._connections.add(connection)
        self.connections_total += 1
        return connection
