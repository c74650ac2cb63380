"""A client that has not said who it is gets a small frame and little time, and an address so many connections."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.server import connection as bookie_connection
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server import service as metadata_service
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import EndpointLimits
from tests.cluster.support.bookie_peer import small_config

SECONDS_MAX = 60.0
SILENT_SECONDS = 0.3
KINDS = ("bookie", "endpoint", "metadata")
TOO_LARGE = {
    "bookie": struct.pack(">IHI", 100_000, 0, 0),
    "endpoint": struct.pack(">I", 100_000),
    "metadata": struct.pack(">I", 100_000),
}

Counts = Callable[[], int]  # connections that were refused


@asynccontextmanager
async def serving(kind: str, home: Path, **limits: Any) -> AsyncIterator[tuple[str, Counts]]:
    if kind == "bookie":
        bookie = Bookie(small_config(home, **limits), None)
        await bookie.start()
        yield bookie.address, lambda: int(str(bookie.statistics()["connections_refused"]))
        await bookie.stop()
    elif kind == "metadata":
        server = EmbeddedServer(home, "127.0.0.1", limits=ServerLimits(**limits))
        await server.start()
        yield server.address, lambda: server.statistics()["connections_refused"]
        await server.stop()
    else:
        memory = MemoryServer()

        async def open_store(timeout_ms: int, token: str | None) -> Any:
            return memory.open_session()

        handshake_ms = round(SILENT_SECONDS * 1_000)
        endpoint = ZooKeeperEndpoint(open_store, limits=EndpointLimits(handshake_ms_max=handshake_ms, **limits))
        await endpoint.start()
        yield await endpoint.listen("127.0.0.1", 0), lambda: endpoint.guard.refused
        await endpoint.stop()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(SECONDS_MAX):
            return await reader.read(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("kind", KINDS)
async def test_one_address_has_as_many_connections_as_it_may(kind: str, tmp_path: Path) -> None:
    async with serving(kind, tmp_path, connections_per_address_max=2) as (address, refused):
        first, second = [await connect(address) for _ in range(2)]
        third = await connect(address)
        assert await is_closed(third[0])
        assert refused() == 1
        for _, writer in (first, second, third):
            writer.close()
        async with asyncio.timeout(SECONDS_MAX):
            while True:  # until the server has seen the ends
                before = refused()
                reader, writer = await connect(address)
                writer.write(TOO_LARGE[kind])
                await is_closed(reader)
                writer.close()
                if refused() == before:
                    break


@pytest.mark.parametrize("kind", KINDS)
async def test_the_first_frame_is_small(kind: str, tmp_path: Path) -> None:
    async with serving(kind, tmp_path) as (address, _):
        reader, writer = await connect(address)
        writer.write(TOO_LARGE[kind])
        assert await is_closed(reader)
        writer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_says_nothing_is_closed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookie_connection, "GREETING_SECONDS_MAX", SILENT_SECONDS)
    monkeypatch.setattr(metadata_service, "SESSIONLESS_MS_MAX", SILENT_SECONDS * 1_000)
    async with serving(kind, tmp_path) as (address, _):
        reader, writer = await connect(address)
        assert await is_closed(reader)
        writer.close()
