"""Servers of the embedded metadata store for tests: in this process, or in one that can be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from heliograph.cluster.ports import pick_free
from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from tests.cluster.support.stalling_proxy import StallingProxy

SESSION_TIMEOUT_MS = 60_000  # survives whatever a busy machine does to it
SERVER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server.record import STATE_KEY, encode_node, encode_state, node_key
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer

async def main():
    limits = ServerLimits(session_timeout_ms_min=100)
    server = EmbeddedServer(Path(sys.argv[1]), "127.0.0.1", int(sys.argv[2]), limits=limits)
    await server.start()
    print(server.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def new_server(directory: Path, port: int = 0, host: str = "127.0.0.1", secret: str | None = None) -> EmbeddedServer:
    port = port or (0 if (directory / "port").exists() else pick_free())  # one that stays free between two lives
    limits = ServerLimits(session_timeout_ms_min=100)
    return EmbeddedServer(directory, host, port, limits=limits, lock_wait_ms=0, secret=secret)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[EmbeddedServer]:
    server = new_server(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def session(address: str, timeout_ms: int = SESSION_TIMEOUT_MS) -> AsyncIterator[EmbeddedStore]:
    host, port = address.split(":")
    store = await EmbeddedStore.connect(host, int(port), session_timeout_ms=timeout_ms)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def proxied(address: str) -> AsyncIterator[tuple[StallingProxy, str]]:
    host, port = address.split(":")
    proxy = StallingProxy(host, int(port))
    try:
        yield proxy, f"127.0.0.1:{await proxy.start()}"
    finally:
        await proxy.stop()


class ServerProcess:
    """A server in a process of its own, which can be killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = pick_free()
        self.address = ""
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER_PROGRAM, str(self.directory), str(self.port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        assert address, "the server starts"
        assert self.address in ("", address), "a restart listens at the same address"
        self.address = address

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
