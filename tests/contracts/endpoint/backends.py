"""The ZooKeeper endpoint as a backend of the contract: our ZooKeeper client -> the endpoint -> another backend."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.store import MetadataStore
from tests.contracts.metadata.etcd_backend import EtcdBackend
from tests.contracts.metadata.zookeeper_server import shared_server

POLL_SECONDS = 0.002
LIMITS = EndpointLimits(session_timeout_ms_min=100)


class EndpointOverMemory:
    """The endpoint and the store behind it in this process, a socket between them and the client."""

    def __init__(self, directory: Path) -> None:
        self.memory = MemoryServer()
        self.endpoint = ZooKeeperEndpoint(self._open_behind, limits=LIMITS)
        self.stores: list[MetadataStore] = []
        self.address = ""

    async def start(self) -> None:
        await self.endpoint.start()
        self.address = await self.endpoint.listen("127.0.0.1", 0)

    async def open(self, timeout_ms: int = 10_000) -> MetadataStore:
        store = await connect_store(f"zk://{self.address}/contract", session_timeout_ms=timeout_ms)
        self.stores.append(store)
        return store

    async def expire(self, store: MetadataStore) -> None:
        async with asyncio.timeout(60):
            while own := [one for one in self.endpoint.sessions if one.store.session_id == store.session_id]:
                own[0].deadline_ms = 0  # repeatedly, because a ping may have come in between
                await asyncio.sleep(POLL_SECONDS)
            if closing := self.endpoint.sessions._closing:  # the store's session ends a moment later
                await asyncio.wait(closing)

    async def stop(self) -> None:
        await asyncio.gather(*(store.close() for store in self.stores))
        await self.endpoint.stop()

    async def _open_behind(self, timeout_ms: int, token: str | None) -> MetadataStore:
        return self.memory.open_session(timeout_ms, token)


class EndpointOverEmbedded(EndpointOverMemory):
    """Run the endpoint over the embedded server, on a real disk."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = EmbeddedServer(directory / "metadata", "127.0.0.1", lock_wait_ms=0)

    async def start(self) -> None:
        await self.server.start()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self.server.stop()

    async def _open_behind(self, timeout_ms: int, token: str | None) -> MetadataStore:
        host, port = self.server.address.split(":")
        return await EmbeddedStore.connect(host, int(port), session_timeout_ms=timeout_ms, token=token)


class EndpointOverEtcd(EndpointOverMemory):
    """Run the endpoint over a real etcd."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.etcd = EtcdBackend(directory)

    async def start(self) -> None:
        await self.etcd.start()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self.etcd.stop()

    async def _open_behind(self, timeout_ms: int, token: str | None) -> MetadataStore:
        return await connect_store(self.etcd.url, session_timeout_ms=timeout_ms, token=token)


class EndpointOverZooKeeper(EndpointOverMemory):
    """Run the endpoint over a real ZooKeeper, below a node of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._root = f"/{uuid.uuid4().hex}"

    async def _open_behind(self, timeout_ms: int, token: str | None) -> MetadataStore:
        url = f"zk://{shared_server().address}{self._root}"
        return await connect_store(url, session_timeout_ms=timeout_ms, token=token)
