"""The gateway as a Ray actor: a plain class that runs an HTTP server on the actor's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ray.exceptions import RayError

from heliograph.auth.issuing import own_token
from heliograph.auth.principal import Principal
from heliograph.base.completion import shielded
from heliograph.base.errors import ClusterNotFoundError, NotFoundError, RequestTimeoutError, ServiceNotReadyError
from heliograph.client import discovery
from heliograph.client.access import client_options, connect_async, joined_address
from heliograph.client.admin.admin import Admin, unwrapped
from heliograph.client.aio.client import AsyncClient
from heliograph.client.identity import Identity
from heliograph.gateway.app import create_app
from heliograph.gateway.cluster_view import MetadataClusterView
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.server import GatewayServer
from heliograph.gateway.sessions.agents import RoleAgents
from heliograph.metadata.connect import connect_store

PART_SECONDS_MAX = 30.0  # one call


class GatewayActor:
    """The HTTP and WebSocket interface of one cluster.

    A call that returns has happened. A call that fails with an actor error may or may not have happened; every call
    may be repeated. The gateway stores nothing that must survive it: sessions end with the process, their producers
    and consumers connect again, and unacknowledged messages are delivered again.

    Args:
        settings: the configuration, or the fields of GatewayConfig by name.

    Raises:
        InvalidConfigError: a setting is unknown or out of range; names it.
    """

    def __init__(self, settings: GatewayConfig | Mapping[str, Any] | None = None) -> None:
        if not isinstance(settings, GatewayConfig):
            settings = GatewayConfig.from_mapping(settings or {})
        self._config = settings
        self._starting: asyncio.Task[str] | None = None
        self._server: GatewayServer | None = None
        self._client: AsyncClient | None = None
        self._cluster: MetadataClusterView | None = None

    def __repr__(self) -> str:
        return f"Gateway({self._config.host}:{self._config.port})"

    async def start(self) -> str:
        """Start serving and return the gateway's URL. Later calls return the same URL.

        Raises:
            ResourceError: the port cannot be used; names it.
            ClusterNotFoundError: no broker can be found.
        """
        starting = self._starting
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception() is not None)):
            self._starting = asyncio.ensure_future(self._start())
        assert self._starting is not None, "made above"
        return await shielded(self._starting)

    async def url(self) -> str:
        """Return ``http://host:port``, with the port that is in use.

        Raises:
            ServiceNotReadyError: the gateway has not started.
        """
        if self._server is None:
            raise ServiceNotReadyError("the gateway has not started")
        return self._server.url

    async def stop(self) -> None:
        """End the sessions within a grace time and close the port. Idempotent."""
        starting, self._starting = self._starting, None
        if starting is not None and not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
        await self._close_clients()

    async def _start(self) -> str:
        server = GatewayServer(self._config)
        server.bind()  # first, so that a port in use costs no connection to the cluster
        try:
            config = self._config
            address = joined_address(config.service_urls) if config.service_urls else None
            factory = None
            if config.auth.is_enabled:
                factory = await _agents_of(config, address)
                self._client = factory.unnamed()
            else:
                self._client = await connect_async(address, namespace=config.ray_namespace, **_tls_options(config))
            self._cluster = MetadataClusterView(lambda: connect_store(config.metadata_url))
            admin, parts = Admin(config.ray_namespace), RayParts(config.ray_namespace)
            await server.start(create_app(self._client, admin, config, self._cluster, parts, factory))
        except BaseException:
            await server.stop()
            await self._close_clients()
            raise
        self._server = server
        return server.url

    async def _close_clients(self) -> None:
        client, self._client = self._client, None
        cluster, self._cluster = self._cluster, None
        if client is not None:
            await client.close()
        if cluster is not None:
            await cluster.close()


class RayParts:
    """The parts of the cluster, reached through their actors."""

    def __init__(self, ray_namespace: str) -> None:
        self._ray_namespace = ray_namespace

    async def names(self) -> list[str]:
        """Return the names of the actors; see ``PartsPort``."""
        return await asyncio.to_thread(discovery.actor_names, self._ray_namespace)

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        """Call a method of an actor; see ``PartsPort``."""
        try:
            handle = await asyncio.to_thread(discovery.actor, part, self._ray_namespace)
        except ClusterNotFoundError as error:
            raise NotFoundError(f"this cluster has no {part} now", field="part") from error
        try:
            return await asyncio.wait_for(getattr(handle, method).remote(*arguments), PART_SECONDS_MAX)
        except AttributeError as error:
            raise NotFoundError(f"{part} runs a version without {method}", field="method") from error
        except TimeoutError:
            raise RequestTimeoutError(f"{part} did not answer within {PART_SECONDS_MAX:.0f} s") from None
        except RayError as error:
            raise unwrapped(error, part) from error


async def _agents_of(config: GatewayConfig, address: str | None) -> RoleAgents:
    """Return the factory of connections that an authenticated gateway opens on behalf of its callers.

    Raises:
        InvalidConfigError: the gateway has no token, by which brokers would know it.
        ClusterNotFoundError: no broker can be found.
    """
    token = own_token(config.auth)  # called again at each connection
    await asyncio.to_thread(token)
    given = {"token": token, **_tls_options(config)}
    options = await asyncio.to_thread(client_options, address, config.ray_namespace, given)

    def admin(principal: Principal) -> Admin:
        identity = Identity(token=options.token, original_principal=principal.role)
        return Admin(config.ray_namespace, identity)

    return RoleAgents(options, admin)


def _tls_options(config: GatewayConfig) -> dict[str, Any]:
    """Return the options of connections to brokers that speak TLS; none if the connections are plain."""
    files = config.broker_tls
    if files is None:
        return {}
    return {
        "tls_enabled": True,
        "tls_ca_file": files.ca or None,
        "tls_certificate_file": files.certificate or None,
        "tls_key_file": files.key or None,
    }
