"""A start that is refused ends the session of the process before it, if that is dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from heliograph.actors.bookie import registration
from heliograph.actors.bookie.registration import forget_if_dead
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.model import BookieRegistration

PATH = paths.bookie_available("b1")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Return a port at which something listens."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


@pytest.fixture
async def closed_port() -> int:
    """Return a port at which nothing listens."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def register(server: MemoryServer, address: str) -> MemoryStore:
    store = server.open_session()
    record = BookieRegistration("b1", address, session_token=store.session_token)
    await store.create(PATH, codec.encode(record), ephemeral=True, parents=True)
    return store


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "tls://127.0.0.1:{}"])
async def test_the_session_ends_if_nothing_listens_at_the_address(address: str, port: int, closed_port: int) -> None:
    server = MemoryServer()
    await register(server, address.format(port))
    own = server.open_session()
    await forget_if_dead(own, "b1")
    assert await own.exists(PATH) is not None
    await own.delete(PATH)
    await register(server, address.format(closed_port))
    await forget_if_dead(own, "b1")
    assert await own.exists(PATH) is None


@pytest.mark.parametrize("address", ["", "b1", "127.0.0.1:70000", "nowhere.invalid:6650"])
async def test_an_address_that_cannot_be_asked_proves_nothing(address: str) -> None:
    server = MemoryServer()
    await register(server, address)
    own = server.open_session()
    await forget_if_dead(own, "b1")
    assert await own.exists(PATH) is not None


async def test_a_process_that_registers_meanwhile_is_left_alone(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, listens = MemoryServer(), registration._listens
    dead, own = await register(server, f"127.0.0.1:{closed_port}"), server.open_session()

    async def asked(address: str) -> bool:
        found = await listens(address)
        await own.end_session(dead.session_token)
        await register(server, "10.0.0.1:3181")
        return found

    monkeypatch.setattr(registration, "_listens", asked)
    await forget_if_dead(own, "b1")
    assert codec.decode(BookieRegistration, (await own.get(PATH))[0]).address == "10.0.0.1:3181"
