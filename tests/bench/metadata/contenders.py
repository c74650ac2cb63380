"""The stores that are compared, each with a client in this process: ours, ZooKeeper, etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
from typing_extensions import override

from heliograph.metadata.backends.etcd.wire.modules import etcd_api
from heliograph.metadata.connect import connect_store
from heliograph.metadata.store import Create, MetadataStore
from tests.bench.process import Child
from tests.contracts.metadata.etcd_server import EtcdServer
from tests.contracts.metadata.zookeeper_server import ZooKeeperServer, missing

ROOT = "/bench"
STORE_BATCH = 500  # nodes of one multi
ETCD_STORE_BATCH = 20  # on etcd, where each node takes several keys
ETCD_BATCH = 100  # keys of one transaction; etcd accepts 128 by default
TIMEOUT_MS = 60_000


class Client(Protocol):
    """One session with a store, and the calls that are measured. Nodes are numbered within a family."""

    async def fill(self, family: str, count: int, value: bytes) -> None:
        """Create a number of nodes as fast as possible."""

    async def get(self, family: str, number: int) -> None:
        """Read one node."""

    async def compare_and_set(self, family: str, number: int, value: bytes) -> None:
        """Change a node with the version that this client knows."""

    async def list(self, family: str) -> int:
        """Read the names of all nodes and return their number."""

    async def follow(self, family: str, on_change: Callable[[], None]) -> None:
        """Watch every change."""


@dataclass(frozen=True)
class Contender:
    """A running store."""

    name: str
    pid: int
    connect: Callable[[], AbstractAsyncContextManager[Client]]


class StoreClient(Client):
    """A client through our interface."""

    def __init__(self, store: MetadataStore, batch: int) -> None:
        self._store = store
        self._batch = batch
        self._versions: dict[str, int] = {}

    @override
    async def fill(self, family: str, count: int, value: bytes) -> None:
        await self._store.create(f"{ROOT}/{family}", parents=True)
        for first in range(0, count, self._batch):
            numbers = range(first, min(first + self._batch, count))
            await self._store.multi([Create(_path(family, number), value) for number in numbers])

    @override
    async def get(self, family: str, number: int) -> None:
        await self._store.get(_path(family, number))

    @override
    async def compare_and_set(self, family: str, number: int, value: bytes) -> None:
        path = _path(family, number)
        self._versions[path] = (await self._store.set(path, value, self._versions.get(path, 0))).version

    @override
    async def list(self, family: str) -> int:
        return len(await self._store.children(f"{ROOT}/{family}"))

    @override
    async def follow(self, family: str, on_change: Callable[[], None]) -> None:
        await self._store.watch(f"{ROOT}/{family}", lambda _: on_change())


class EtcdClient(Client):
    """A client with etcd's own calls, without our interface."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._api: Any = etcd_api()
        self._keys: Any = self._api.KVStub(channel)
        self._watch: Any = self._api.WatchStub(channel)
        self._revisions: dict[bytes, int] = {}
        self._followers: set[asyncio.Task[None]] = set()

    @override
    async def fill(self, family: str, count: int, value: bytes) -> None:
        for first in range(0, count, ETCD_BATCH):
            numbers = range(first, min(first + ETCD_BATCH, count))
            puts = [self._api.PutRequest(key=_key(family, number), value=value) for number in numbers]
            await self._keys.Txn(self._api.TxnRequest(success=[self._api.RequestOp(request_put=put) for put in puts]))

    @override
    async def get(self, family: str, number: int) -> None:
        await self._keys.Range(self._api.RangeRequest(key=_key(family, number)))

    @override
    async def compare_and_set(self, family: str, number: int, value: bytes) -> None:
        key = _key(family, number)
        if key not in self._revisions:
            found = await self._keys.Range(self._api.RangeRequest(key=key))
            self._revisions[key] = found.kvs[0].mod_revision
        compare = self._api.Compare(
            result=self._api.Compare.EQUAL,
            target=self._api.Compare.MOD,
            key=key,
            mod_revision=self._revisions[key],
        )
        put = self._api.RequestOp(request_put=self._api.PutRequest(key=key, value=value))
        answer = await self._keys.Txn(self._api.TxnRequest(compare=[compare], success=[put]))
        assert answer.succeeded, "nobody else writes"
        self._revisions[key] = answer.header.revision

    @override
    async def list(self, family: str) -> int:
        start, end = f"{ROOT}/{family}/".encode(), f"{ROOT}/{family}0".encode()
        return len((await self._keys.Range(self._api.RangeRequest(key=start, range_end=end, keys_only=True))).kvs)

    @override
    async def follow(self, family: str, on_change: Callable[[], None]) -> None:
        start, end = f"{ROOT}/{family}/".encode(), f"{ROOT}/{family}0".encode()
        stream = self._watch.Watch()
        await stream.write(
            self._api.WatchRequest(create_request=self._api.WatchCreateRequest(key=start, range_end=end))
        )
        await stream.read()  # so that the watch is set
        self._followers.add(asyncio.get_running_loop().create_task(self._follow(stream, on_change)))

    async def stop(self) -> None:
        """Stop watching."""
        for task in self._followers:
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    @staticmethod
    async def _follow(stream: Any, on_change: Callable[[], None]) -> None:
        while True:
            for _ in (await stream.read()).events:
                on_change()


@contextmanager
def embedded(directory: Path) -> Iterator[Contender]:
    """Start the embedded store, in a process of its own."""
    with Child("tests.bench.metadata.host", directory) as server:
        url = f"embedded://{server.said()}"
        yield Contender("embedded", server.pid, lambda: _store_client(url))


@contextmanager
def zookeeper(directory: Path) -> Iterator[Contender | None]:
    """Start ZooKeeper, used through kazoo; None when it is not installed."""
    if missing():
        yield None
        return
    server = ZooKeeperServer(directory, is_durable=True)
    server.start()
    try:
        url = f"zk://{server.address}"
        yield Contender("ZooKeeper", server.pid, lambda: _store_client(url))
    finally:
        server.kill()


@contextmanager
def raw_etcd(directory: Path) -> Iterator[Contender]:
    """Start etcd, used by its own calls."""
    server = EtcdServer(directory, is_durable=True)
    server.start()
    try:
        yield Contender("raw etcd", server.pid, lambda: _etcd_client(server.address))
    finally:
        server.kill()


@contextmanager
def etcd(directory: Path) -> Iterator[Contender]:
    """Start etcd, used through our interface."""
    server = EtcdServer(directory, is_durable=True)
    server.start()
    try:
        url = f"etcd://{server.address}"
        yield Contender("etcd backend", server.pid, lambda: _store_client(url, ETCD_STORE_BATCH))
    finally:
        server.kill()


@asynccontextmanager
async def _store_client(url: str, batch: int = STORE_BATCH) -> AsyncIterator[Client]:
    store = await connect_store(url, session_timeout_ms=TIMEOUT_MS)
    try:
        yield StoreClient(store, batch)
    finally:
        await store.close()


@asynccontextmanager
async def _etcd_client(address: str) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        client = EtcdClient(channel)
        try:
            yield client
        finally:
            await client.stop()


def _path(family: str, number: int) -> str:
    return f"{ROOT}/{family}/n{number:06d}"


def _key(family: str, number: int) -> bytes:
    return _path(family, number).encode()
