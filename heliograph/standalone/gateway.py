"""The gateway of a cluster in one process. Its port is open from the start; its app is loaded for the first caller.

The web framework takes longer to import than all other parts take to start, and most users of such a cluster never
speak HTTP to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
from typing import TYPE_CHECKING

from heliograph.base.completion import end_task
from heliograph.base.errors import ResourceError
from heliograph.base.peer import host_and_port
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.listening import listening_socket
from heliograph.metadata.connect import connect_store
from heliograph.standalone.admin_socket import BrokerAdministration

if TYPE_CHECKING:
    from heliograph.gateway.http.server import GatewayServer
    from heliograph.gateway.ports import PartsPort
    from heliograph.standalone.security import Security

log = logging.getLogger(__name__)


class GatewayOnDemand:
    """A gateway that begins to work when the first connection comes in. Connections wait until it does."""

    def __init__(
        self,
        config: GatewayConfig,
        admin: BrokerAdministration,
        service_url: str,
        metadata_url: str,
        parts: PartsPort,
        security: Security | None = None,
    ) -> None:
        self._security = security
        self._config = config
        self._admin = admin
        self._service_url = service_url
        self._metadata_url = metadata_url
        self._parts = parts
        self._listener: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._started = contextlib.AsyncExitStack()

    def start(self) -> str:
        """Open the port and return ``http://host:port``, or ``https://host:port`` if it is secured.

        Raises:
            ResourceError: the port is taken; ``field`` is ``http_port``.
        """
        config = self._config
        try:
            listener = self._listener = listening_socket(config.host, config.port)
        except ResourceError as error:
            raise ResourceError(str(error), field="http_port") from error
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, self._first_connection)
        scheme = "http" if config.tls is None else "https"
        return f"{scheme}://{host_and_port(config.advertised_host or config.host, listener.getsockname()[1])}"

    async def stop(self) -> None:
        """End the sessions and close the port. Idempotent."""
        listener, self._listener = self._listener, None
        serving, self._serving = self._serving, None
        if listener is not None and serving is None:
            asyncio.get_running_loop().remove_reader(listener)
        await end_task(serving)
        await self._started.aclose()
        if listener is not None:
            listener.close()

    def _first_connection(self) -> None:
        assert self._listener is not None, "the reader is removed by stop"
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._serving = loop.create_task(self._serve(self._listener), name="gateway")

    async def _serve(self, listener: socket.socket) -> None:
        try:
            await asyncio.to_thread(_load)
            from heliograph.client.access import connect_async
            from heliograph.gateway.cluster_view import MetadataClusterView

            factory = None
            if self._security is None:
                client = await connect_async(self._service_url)
            else:
                from heliograph.standalone.security import gateway_agents

                factory = gateway_agents(self._security, self._service_url, self._admin)
                client = factory.unnamed()
            self._started.push_async_callback(client.close)
            view = MetadataClusterView(lambda: connect_store(self._metadata_url))
            self._started.push_async_callback(view.close)
            server = _server(self._config, listener)
            self._started.push_async_callback(server.stop)
            from heliograph.gateway.app import create_app

            config = dataclasses.replace(self._config, metadata_url=self._metadata_url)
            await server.start(create_app(client, self._admin, config, view, self._parts, factory))
        except Exception as error:  # also of a framework that is not installed; the other parts go on
            log.error("the gateway does not start: %s: %s", type(error).__name__, error)
            listener.close()


def _load() -> None:
    """Import the web framework, which takes up to a second."""
    from heliograph.gateway import app, cluster_view  # noqa: F401
    from heliograph.gateway.http import server  # noqa: F401


def _server(config: GatewayConfig, listener: socket.socket) -> GatewayServer:
    from heliograph.gateway.http.server import GatewayServer

    return GatewayServer(config, listener)
