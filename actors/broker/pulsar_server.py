"""The listener for clients that speak Pulsar's binary protocol."""

from __future__ import annotations

import asyncio
import logging

from actors.broker.ack_commands import AckCommands
from actors.broker.broker_context import BrokerContext
from actors.broker.connection import Connection
from actors.broker.consumer_commands import ConsumerCommands
from actors.broker.lookup_commands import LookupCommands
from actors.broker.producer_commands import ProducerCommands
from actors.broker.refused_commands import RefusedCommands
from heliograph.errors import ResourceError

LISTEN_BACKLOG = 1_024  # connections not accepted yet

log = logging.getLogger(__name__)


class PulsarServer:
    """Accepts connections for one broker. The socket is bound by ``bind``, clients are let in by ``start``, because the
    broker has to register its address before it serves."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._wanted_port = port
        self._server: asyncio.Server | None = None
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
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def bind(self) -> None:
        """Take the port.

        Raises:
            ResourceError: it is in use or not allowed.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connected, self._host, self._wanted_port, backlog=LISTEN_BACKLOG, start_serving=False
            )
        except OSError as error:
            raise ResourceError(
                f"cannot listen on {self._host}:{self._wanted_port}: {error.strerror or error}; choose another port",
                field="port",
            ) from error

    async def start(self, context: BrokerContext) -> None:
        """Let clients in."""
        assert self._server is not None, "the listener is bound"
        self._context = context
        await self._server.start_serving()

    async def stop(self) -> None:
        """Take no more clients and hang up on those there are."""
        if self._server is None:
            return
        self._server.close()
        self.hang_up()
        await self._server.wait_closed()

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
        RefusedCommands(connection)
        if len(self._connections) >= self._context.config.connections_max:
            log.warning("connection refused: there are %d", len(self._connections))
            connection.refuse()
        self._connections.add(connection)
        self.connections_total += 1
        return connection
