"""The etcd backend under the metadata contract: one real etcd for the whole run, a fresh prefix for each test."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from heliograph.metadata.backends.etcd.client import EtcdStore
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection
from heliograph.metadata.store import MetadataStore
from tests.contracts.metadata.etcd_server import shared_server


class EtcdBackend:
    """A ``Backend`` of ``tests/contracts/metadata/backends.py``."""

    def __init__(self, directory: Path) -> None:
        self._prefix = f"/{uuid.uuid4().hex}"
        self.stores: list[MetadataStore] = []

    @property
    def url(self) -> str:
        return f"etcd://{shared_server().address}{self._prefix}"

    async def start(self) -> None:
        shared_server()  # on this thread, the first one: the server ends when the thread that started it does

    async def open(self, timeout_ms: int = 10_000) -> MetadataStore:
        store = await EtcdStore.connect(self.url, session_timeout_ms=timeout_ms)
        self.stores.append(store)
        return store

    async def expire(self, store: MetadataStore) -> None:
        connection = EtcdConnection(EtcdAddress.parse(self.url), shared_server().address)
        await connection.revoke(store.session_id)  # what etcd itself does when the time has run out
        connection.close()

    async def stop(self) -> None:
        await asyncio.gather(*(store.close() for store in self.stores))
