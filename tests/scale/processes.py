"""The rows that need processes of their own: the store by itself, and connections of a broker."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from typing import cast

from heliograph.base.loop_thread import LoopThread
from heliograph.metadata.connect import connect_store
from heliograph.metadata.parents import child_pages
from heliograph.metadata.paths import TOPICS
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import encode_command
from heliograph.standalone.local import local
from tests.bench.process import Child, cpu_time, memory_bytes
from tests.scale.cost import Cost
from tests.scale.filling import NAMESPACE, TENANT
from tests.scale.row import Row, other
from tests.scale.site import Site

NODES = 11_000_000
CONNECTIONS = 10_000
CONNECTIONS_MAX = 10_000  # of a broker, by default
ADDRESSES = 3  # of clients: one address may have half of the connections
OPENED_AT_ONCE = 100
CONNECT_SECONDS_MAX = 120.0


def store(site: Site) -> tuple[int, Cost]:
    """Start the store on its directory, and read one namespace from it."""
    with Child("tests.bench.metadata.host", site.metadata) as server:
        server.said()  # the first start makes what later ones read
    began = time.perf_counter()
    with Child("tests.bench.metadata.host", site.metadata) as server:
        address = server.said()
        started, cpu = time.perf_counter() - began, cpu_time(server.pid).total
        asyncio.run(_read_names(address))
        memory = memory_bytes(server.pid)
    return site.topics + site.ledgers, Cost(cpu * 1e3, more={"start": started, "memory": memory / 1e6})


async def _read_names(address: str) -> None:
    session = await connect_store(f"embedded://{address}")
    try:
        async for _ in child_pages(session, f"{TOPICS}/{TENANT}/{NAMESPACE}"):
            pass
    finally:
        await session.close()


def connections(site: Site) -> tuple[int, Cost]:
    """Open connections that ask for nothing, to a broker in a process of its own."""
    count = min(site.topics, CONNECTIONS_MAX)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Child("tests.scale.processes", site.directory / "connections") as server:
        port = int(server.said().rpartition(":")[2])
        loop = LoopThread("connections")
        try:
            before, used = memory_bytes(server.pid), cpu_time(server.pid).total
            loop.run(_connect(port, count))
            grown, used = memory_bytes(server.pid) - before, cpu_time(server.pid).total - used
        finally:
            loop.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count, Cost(more={"memory": grown / count / 1e3, "opening": used / count * 1e6})


class Idle(asyncio.Protocol):
    """A connection that says who it is."""

    def __init__(self) -> None:
        self.answered = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connect = pb.CommandConnect(client_version="scale", protocol_version=20)
        cast(asyncio.Transport, transport).write(
            encode_command(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect))
        )

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(ConnectionError("the broker refused the connection"))


async def _connect(port: int, count: int) -> None:
    loop, numbers = asyncio.get_running_loop(), iter(range(count))

    async def some() -> None:
        for number in numbers:
            source = (f"127.0.0.{2 + number % ADDRESSES}", 0)
            _, idle = await loop.create_connection(Idle, "127.0.0.1", port, local_addr=source)
            await idle.answered

    async with asyncio.timeout(CONNECT_SECONDS_MAX):
        await asyncio.gather(*(some() for _ in range(OPENED_AT_ONCE)))


ROWS = (
    Row(
        "metadata store", "nodes", store, (other("start", "s", 2, NODES), other("memory", "MB", 500, NODES)),
        runs_small=False,
    ),
    Row(
        "idle connections", "connections", connections,
        (other("memory", "kB", 20, CONNECTIONS), other("opening", "us", 1_000, CONNECTIONS)), runs_small=False,
    ),
)  # fmt: skip


def main() -> None:
    """Serve a cluster in the directory that is given, until the process is ended."""
    with local(sys.argv[1]) as cluster:
        print(cluster.service_url, flush=True)
        cluster.ended.wait()


if __name__ == "__main__":
    main()
