"""The backends that the metadata contract is tested on, each with the faults that the tests cause from outside."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest
from _pytest.mark.structures import ParameterSet

from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.chroot import ChrootStore
from heliograph.metadata.connect import connect_store
from heliograph.metadata.store import MetadataStore, SessionState
from tests.contracts.endpoint.backends import EndpointOverEmbedded, EndpointOverEtcd, EndpointOverMemory
from tests.contracts.metadata.etcd_backend import EtcdBackend
from tests.contracts.metadata.zookeeper_server import missing as missing_zookeeper
from tests.contracts.metadata.zookeeper_server import shared_server
from tests.waits import until

DEADLINE_SECONDS = 60


class Backend(Protocol):
    """One store, empty at the start of a test."""

    async def start(self) -> None: ...

    async def open(self) -> MetadataStore:
        """Begin a session."""

    async def expire(self, store: MetadataStore) -> None:
        """End a session as if its time had run out."""

    async def stop(self) -> None:
        """End everything that the backend has started."""


class MemoryBackend:
    """The store inside this process."""

    def __init__(self, directory: Path) -> None:
        self.server = MemoryServer()

    async def start(self) -> None:
        pass

    async def open(self) -> MetadataStore:
        return self.server.open_session()

    async def expire(self, store: MetadataStore) -> None:
        self.server.expire_session(store.session_id)

    async def stop(self) -> None:
        pass


class ChrootBackend(MemoryBackend):
    """The store inside this process, below one of its nodes."""

    async def open(self) -> MetadataStore:
        return await ChrootStore.below(self.server.open_session(), "/deep/root")


class EmbeddedBackend:
    """The server on a real disk and a real socket, in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "metadata"
        self.server = self._new_server()
        self.stores: list[MetadataStore] = []

    def _new_server(self) -> EmbeddedServer:
        limits = ServerLimits(session_timeout_ms_min=100)
        return EmbeddedServer(self.directory, "127.0.0.1", limits=limits, lock_wait_ms=0)

    async def start(self) -> None:
        await self.server.start()

    async def open(self, timeout_ms: int = 10_000) -> MetadataStore:
        host, port = self.server.address.split(":")
        store = await EmbeddedStore.connect(host, int(port), session_timeout_ms=timeout_ms)
        self.stores.append(store)
        return store

    async def expire(self, store: MetadataStore) -> None:
        service = self.server._service
        assert service is not None
        sessions = service.tree.sessions

        def is_over() -> bool:
            session = sessions.get(store.session_id)
            if session is not None:
                session.deadline_ms = 0  # at each check: a ping may move the deadline
            return session is None

        await until(is_over)

    async def restart(self) -> None:
        await self.server.stop()
        self.server = self._new_server()
        await self.server.start()

    async def stop(self) -> None:
        for store in self.stores:
            await store.close()
        await self.server.stop()


class ZooKeeperBackend:
    """A real ZooKeeper that the whole run shares; each test has a chroot of its own."""

    def __init__(self, directory: Path) -> None:
        self._root = f"/{uuid.uuid4().hex}"
        self.stores: list[MetadataStore] = []

    async def start(self) -> None:
        shared_server()  # on this thread, the first one: the server ends when the thread that started it does

    async def open(self, timeout_ms: int = 10_000) -> MetadataStore:
        url = f"zk://{shared_server().address}{self._root}"
        store = await connect_store(url, session_timeout_ms=timeout_ms)
        self.stores.append(store)
        return store

    async def expire(self, store: MetadataStore) -> None:
        async with self._another() as other:
            await other.end_session(store.session_token)
        await until(lambda: store.state is SessionState.LOST)

    async def stop(self) -> None:
        await asyncio.gather(*(store.close() for store in self.stores))

    @asynccontextmanager
    async def _another(self) -> AsyncIterator[MetadataStore]:
        store = await self.open()
        try:
            yield store
        finally:
            await store.close()


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "memory": MemoryBackend,
    "memory-chroot": ChrootBackend,
    "embedded": EmbeddedBackend,
    "zookeeper": ZooKeeperBackend,
    "etcd": EtcdBackend,
    "endpoint-memory": EndpointOverMemory,
    "endpoint-embedded": EndpointOverEmbedded,
    "endpoint-etcd": EndpointOverEtcd,
}
# By backend: a function that says what this machine lacks for it, "" for nothing.
_NEEDS: dict[str, Callable[[], str]] = {"zookeeper": missing_zookeeper}
_numbers = itertools.count()


def backends_here() -> list[ParameterSet]:
    """Return the backends as parameters of a test.

    One that this machine cannot run is skipped and says what it needs.
    """
    lacking = {name: need() for name, need in _NEEDS.items()}
    return [
        pytest.param(name, marks=[pytest.mark.skip(lacking[name])] if lacking.get(name) else [])
        for name in sorted(BACKENDS)
    ]


def fresh(make: Callable[[Path], Backend], directory: Path) -> Backend:
    """Return a backend with a folder of its own."""
    return make(directory / f"backend-{next(_numbers)}")
