"""A Heliograph for foreign clients: two brokers, three bookies and a gateway, in this process, over real sockets.

The servers run on a loop in a thread of its own; the test waits for the foreign program meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import heliograph
from heliograph.client.aio.client import AsyncClient
from heliograph.gateway.app import create_app
from heliograph.gateway.cluster_view import MetadataClusterView
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.server import GatewayServer
from heliograph.gateway.ports import AdminPort
from heliograph.metadata.store import MetadataStore
from heliograph.operations.table import AdminOperation
from tests.cluster.support.broker_cluster import BrokerCluster, RunningBroker, broker_cluster, wait_for
from tests.unit.gateway.world import NoParts


class _AnyBroker:
    """The administrative interface of any live broker, as the gateway of a real cluster has it."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster.admin, name)

    def called_from(self, address: str) -> _AnyBroker:
        return self

    async def call(self, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        """Run an operation of the table, which programs beside the brokers ask for by its name."""
        return await self._cluster.admin.run(operation.name, arguments)


class ClientsStack:
    """Made by ``running_stack``.

    Args:
        config: of the gateway.
        agents: what acts for the gateway's callers, where it authenticates them.
    """

    def __init__(self, cluster: BrokerCluster, config: GatewayConfig | None = None, agents: Any = None) -> None:
        self.cluster = cluster
        self._config = config or GatewayConfig(port=0)
        self._agents = agents
        self._closing = contextlib.AsyncExitStack()
        self._server: GatewayServer | None = None

    @property
    def service_url(self) -> str:
        """Return ``pulsar://host:port,host:port`` with all brokers."""
        return self.cluster.service_url

    @property
    def web_url(self) -> str:
        """Return ``http://host:port`` of the gateway."""
        assert self._server is not None, "the stack is running"
        return self._server.url

    def answer(self, question: dict[str, Any]) -> Any:
        """Do what a program asks for.

        - ``crash_owner``, ``topic``: the broker that serves the topic dies as by a SIGKILL; after that there is a new
          one at its address.
        - ``unload``, ``namespace``: its topics leave their brokers and may be served by another.
        - ``move``, ``topic``: another broker serves the topic, and the one that did lives on.
        - ``owner``, ``topic``: the address of the broker that serves the topic.
        """
        match question["ask"]:
            case "crash_owner":
                self.crash_owner(question["topic"])
            case "unload":
                self.cluster.run(self.cluster.admin.brokers.unload_namespace(question["namespace"]))
            case "move":
                self.move(question["topic"])
            case "owner":
                return self.cluster.owner_of(question["topic"]).broker.service_url
            case other:
                raise ValueError(f"no program may ask for {other!r}")
        return None

    def crash_owner(self, topic: str) -> RunningBroker:
        """End the broker that serves a topic as a crash would, and start the next one at its address."""
        return self.cluster.crash_and_restart(self.cluster.owner_of(topic))

    def move(self, topic: str) -> None:
        """Have another broker serve a topic: its owner gives all its bundles away, and may have others afterwards."""
        owner = self.cluster.owner_of(topic).broker.config.broker_id
        brokers = self.cluster.admin.brokers
        self.cluster.run(brokers.drain(owner))
        wait_for(lambda: self.cluster.owner_of(topic).broker.config.broker_id != owner, f"another owner of {topic}")
        self.cluster.run(brokers.undrain(owner))

    async def start(self) -> None:
        client = await self._client()
        self._closing.push_async_callback(client.close)
        config = self._config
        server = self._server = GatewayServer(config)
        server.bind()

        async def session() -> MetadataStore:
            return self.cluster.metadata.open_session()

        view = MetadataClusterView(session)
        self._closing.push_async_callback(view.close)
        admin = cast(AdminPort, _AnyBroker(self.cluster))
        await server.start(create_app(client, admin, config, view, NoParts(), self._agents))
        self._closing.push_async_callback(server.stop)

    async def _client(self) -> AsyncClient:
        """Return the gateway's own client."""
        return await heliograph.connect_async(self.cluster.service_url)

    async def stop(self) -> None:
        await self._closing.aclose()


@contextlib.contextmanager
def running_stack(
    directory: Path, *, brokers: int = 2, options: dict[str, Any] | None = None, **policies: Any
) -> Iterator[ClientsStack]:
    """Run a cluster with a gateway for the duration of the block; ``policies`` are those of ``public/default``, and
    ``options`` settings of its brokers. They note the time and the index of entries, so that every client shows that it
    copes with that."""
    settings = {"entry_metadata": "both", **(options or {})}
    with broker_cluster(directory, bookies=3, brokers=brokers, options=settings, **policies) as cluster:
        stack = ClientsStack(cluster)
        cluster.run(stack.start())
        try:
            yield stack
        finally:
            cluster.run(stack.stop())
