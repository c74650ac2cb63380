"""Unix sockets beside TCP listeners: who gets one, who is refused, and that TCP is always the way out."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import Any, cast

import pytest

from heliograph.base.guard import local_socket
from heliograph.base.guard.local_socket import (
    UNMAPPED,
    LocalListener,
    connected_socket,
    open_connection,
    socket_name,
)
from heliograph.base.peer import peer_address, peer_name
from heliograph.protocol.outbox import Outbox

pytestmark = pytest.mark.skipif(not local_socket._is_available(), reason="abstract names are Linux's")

HOST = "127.0.0.1"
ROOT = 0
STRANGER = 12_345  # a user that nobody is
SECONDS_MAX = 60.0


class Server(asyncio.Protocol):
    """Says by what kind of socket the client came, and keeps the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer, self.address = peer_name(transport), peer_address(transport)
        its = transport.get_extra_info("socket")
        cast(asyncio.WriteTransport, transport).write(b"by unix" if its.family == socket.AF_UNIX else b"by tcp")


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.way: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.way.set_result(data.decode().removeprefix("by "))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.way.done():
            self.way.set_result("closed")


class Both:
    """A TCP listener, and the Unix socket beside it once ``listen`` is called."""

    def __init__(self, tcp: asyncio.Server) -> None:
        self.port = int(tcp.sockets[0].getsockname()[1])
        self.served: list[Server] = []
        self.local = LocalListener("server", self.serve)

    def serve(self) -> Server:
        self.served.append(Server())
        return self.served[-1]

    async def listen(self, host: str = HOST, advertised_host: str = "", backlog: int = 16) -> None:
        await self.local.listen(host, self.port, advertised_host, backlog)
        await self.local.start_serving()

    async def way(self, context: ssl.SSLContext | None = None) -> str:
        """Return by which kind of socket a client comes now."""
        async with asyncio.timeout(SECONDS_MAX):
            client = await open_connection(Client, HOST, self.port, context)
            way = await client.way
        client.transport.close()
        return way


@asynccontextmanager
async def tcp_listener() -> AsyncIterator[Both]:
    tcp = await asyncio.get_running_loop().create_server(Server, HOST, 0)
    both = Both(tcp)
    try:
        yield both
    finally:
        both.local.close()
        tcp.close()
        await asyncio.sleep(0)


@contextmanager
def squatted(port: int, backlog: int = 16) -> Iterator[socket.socket]:
    """Have the name of a port, and accept nobody."""
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(socket_name(HOST, port) or b"")
        squatter.listen(backlog)
        yield squatter


@contextmanager
def another_user() -> Iterator[None]:
    """Have what connects and listens in the block belong to another user. Needs root."""
    if os.geteuid() != ROOT:
        pytest.skip("only root can be another user")
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(ROOT)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param}


async def test_a_client_of_the_machine_comes_by_the_unix_socket_and_counts_as_loopback() -> None:
    async with tcp_listener() as both:
        assert await both.way() == "tcp", "there is no Unix socket yet"
        await both.listen()
        assert await both.way() == "unix"
        assert (both.served[0].address, both.served[0].peer) == (HOST, f"{HOST}:0")
        assert both.local.accepted == 1


@pytest.mark.parametrize("way", ["tcp", "unix"])
async def test_a_caller_that_is_cancelled_as_the_socket_opens_loses_the_connection(way: str) -> None:
    problems: list[str] = []
    lost = asyncio.Event()

    class Greeting(Client):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.outbox = Outbox(self.transport, loop.call_soon)
            self.outbox.put(b"hello")
            loop.call_soon(calling.cancel)
            loop.call_soon(lambda: loop.call_soon(self.outbox.put, b"more"))  # when the caller has ended

        def connection_lost(self, exc: Exception | None) -> None:
            assert not lost.is_set()
            self.outbox.drop()
            lost.set()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(str(context)))
    async with tcp_listener() as both:
        if way == "unix":
            await both.listen()
        calling = asyncio.create_task(open_connection(Greeting, HOST, both.port, None))
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(SECONDS_MAX):
            await lost.wait()
        await asyncio.sleep(0.01)
    assert problems == []


async def test_the_name_is_free_once_the_listener_closes_and_its_connections_go_on() -> None:
    async with tcp_listener() as both:
        await both.listen()
        old = await open_connection(Client, HOST, both.port, None)
        assert await old.way == "unix"
        both.local.close()
        both.local.close()
        assert await both.way() == "tcp"
        again = LocalListener("restarted", both.serve)
        await again.listen(HOST, both.port, "", 16)
        assert connected_socket(HOST, both.port) is None, "it does not serve yet"
        await again.start_serving()
        assert await both.way() == "unix"
        assert not old.transport.is_closing()
        old.transport.close()
        again.close()


async def test_a_name_that_another_process_has_leaves_tcp(caplog: pytest.LogCaptureFixture) -> None:
    async with tcp_listener() as both:
        with squatted(both.port), caplog.at_level(logging.WARNING):
            await both.listen()
            assert "its clients use TCP" in caplog.text
        assert await both.way() == "tcp"


async def test_a_server_of_another_user_is_left_for_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tcp_listener() as both:
        with squatted(both.port):
            for user in (STRANGER, UNMAPPED):
                monkeypatch.setattr(local_socket, "user_of", lambda _, user=user: user)
                assert await both.way() == "tcp"


async def test_a_squatter_of_another_user_gets_nobody() -> None:
    async with tcp_listener() as both:
        with another_user():
            stranger = squatted(both.port)
            stranger.__enter__()
        assert await both.way() == "tcp"
        stranger.__exit__(None, None, None)


async def test_a_client_of_another_user_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with tcp_listener() as both:
        await both.listen()
        with socket.socket(socket.AF_UNIX) as client:
            with another_user():
                client.connect(socket_name(HOST, both.port) or b"")
            client.setblocking(False)
            async with asyncio.timeout(SECONDS_MAX):
                with suppress(ConnectionResetError):
                    assert await asyncio.get_running_loop().sock_recv(client, 16) == b""
        assert (both.served, both.local.accepted) == ([], 0)
        assert f"user {STRANGER}" in caplog.text
        assert await both.way() == "unix", "others still come"


async def test_a_client_of_another_user_uses_tcp_also_where_the_server_is_root() -> None:
    async with tcp_listener() as both:
        await both.listen()
        with another_user():
            assert connected_socket(HOST, both.port) is None, "the server would refuse it"


async def test_a_user_without_a_number_of_its_own_has_no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tcp_listener() as both:
        await both.listen()
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: UNMAPPED)
            patch.setattr(local_socket, "user_of", lambda _: UNMAPPED)
            assert await both.way() == "tcp"
            both.local.close()
            await both.listen()
        assert await both.way() == "tcp"


async def test_a_full_backlog_leaves_tcp() -> None:
    async with tcp_listener() as both:
        with squatted(both.port, backlog=0):
            waiting = []
            while (one := connected_socket(HOST, both.port)) is not None:
                waiting.append(one)
            assert waiting
            assert await both.way() == "tcp"
            for each in waiting:
                each.close()


async def test_a_client_with_tls_comes_by_tcp() -> None:
    async with tcp_listener() as both:
        await both.listen()
        with pytest.raises(ssl.SSLError):  # the listener has none; the bytes reached it
            await both.way(ssl.create_default_context())
        assert both.local.accepted == 0


async def test_without_abstract_names_there_is_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tcp_listener() as both:
        await both.listen()
        monkeypatch.delattr(socket, "SO_PEERCRED")
        assert await both.way() == "tcp"
        both.local.close()
        await both.listen()
        monkeypatch.undo()
        assert await both.way() == "tcp"


@pytest.mark.parametrize(
    ("host", "advertised_host", "has_one"),
    [
        (HOST, "", True),
        (HOST, HOST, True),
        ("0.0.0.0", HOST, True),
        ("0.0.0.0", "", False),
        ("0.0.0.0", "localhost", False),
        ("0.0.0.0", "203.0.113.9", False),
        (HOST, "127.0.0.2", False),
        ("localhost", "", False),
    ],
)
async def test_only_an_address_of_this_machine_has_a_unix_socket(
    host: str, advertised_host: str, has_one: bool
) -> None:
    async with tcp_listener() as both:
        await both.listen(host, advertised_host)
        assert (await both.way() == "unix") is has_one


async def test_a_server_that_still_has_the_name_of_an_address_gone_elsewhere_is_left_for_tcp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tcp_listener() as both:
        await both.listen()
        monkeypatch.setattr(local_socket, "_is_of_this_machine", lambda _: False)
        assert await both.way() == "tcp"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (HOST, b"\0heliograph/127.0.0.1/6650"),
        ("[::1]", b"\0heliograph/::1/6650"),
        ("0:0::1", b"\0heliograph/::1/6650"),
        ("broker-1.example", None),
        ("", None),
    ],
)
def test_names_stand_for_addresses(host: str, name: bytes | None) -> None:
    assert socket_name(host, 6650) == name


async def test_no_socket_is_left_open_by_a_refusal() -> None:
    async with tcp_listener() as both:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            assert connected_socket(HOST, both.port) is None
        with closing(socket.socket(socket.AF_UNIX)) as squatter:
            squatter.bind(socket_name(HOST, both.port) or b"")
            for _ in range(10):
                await both.listen()
        assert len(os.listdir("/proc/self/fd")) == before
