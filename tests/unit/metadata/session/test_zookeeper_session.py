"""The client's session with ZooKeeper, against servers that fail at bad moments."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from functools import partial

from heliograph.metadata.backends.zookeeper import requests
from heliograph.metadata.backends.zookeeper.address import REQUESTS_IN_FLIGHT_MAX
from heliograph.metadata.backends.zookeeper.session import ZooKeeperSession
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import SessionState
from tests.waits import until

ZXID = 77
EXISTS, AUTH = 3, 100
OPERATION_TIMEOUT = -7


def framed(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


GRANTED = framed(struct.pack("!iiq", 0, 4_000, 7) + framed(bytes(16)) + b"\0")


class FakeServer:
    """A server that answers every request as if its node was there. ``greet`` writes the answer to a connection.

    Attributes:
        zxids: what each client said that it has seen.
        asked: type and body of each request.
        refusals: the error with which the next request of a type is answered.
    """

    def __init__(self, greet: Callable[[int, asyncio.StreamWriter], None]) -> None:
        self.zxids: list[int] = []
        self.asked: list[tuple[int, bytes]] = []
        self.refusals: dict[int, int] = {}
        self.answering = asyncio.Event()
        self.answering.set()
        self._greet = greet
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        await until(lambda: not self._writers)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            (zxid,) = struct.unpack_from("!q", await self._frame(reader), 4)
            self.zxids.append(zxid)
            self._greet(len(self.zxids), writer)
            while True:
                frame = await self._frame(reader)
                xid, kind = struct.unpack_from("!ii", frame)
                self.asked.append((kind, frame[8:]))
                await self.answering.wait()
                writer.write(framed(struct.pack("!iqi", xid, ZXID, self.refusals.pop(kind, 0)) + bytes(68)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._writers.discard(writer)

    @staticmethod
    async def _frame(reader: asyncio.StreamReader) -> bytes:
        return await reader.readexactly(struct.unpack("!i", await reader.readexactly(4))[0])


def grant(_: int, writer: asyncio.StreamWriter) -> None:
    writer.write(GRANTED)


@contextlib.asynccontextmanager
async def attached(server: FakeServer, *others: str) -> AsyncIterator[ZooKeeperSession]:
    """Begin a session with a server; ``others`` are further endpoints."""
    endpoint = await server.start()
    session = await ZooKeeperSession.open([endpoint, *others], 4_000, 30_000, ())
    try:
        yield session
    finally:
        await session.detach()
        await server.stop()


async def test_a_connection_that_ends_as_it_grants_the_session_is_replaced() -> None:
    def greet(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(GRANTED + struct.pack("!i", -1) if number == 1 else GRANTED)

    server = FakeServer(greet)
    async with attached(server) as session:
        await until(lambda: session.clock.state is SessionState.CONNECTED and len(server.zxids) == 2)


async def test_a_server_that_speaks_before_it_is_asked_is_no_server_of_ours() -> None:
    def welcome(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 welcome\r\n")
        writer.close()

    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    greeting = await asyncio.start_server(welcome, "127.0.0.1", 0)
    host, port = greeting.sockets[0].getsockname()
    server = FakeServer(grant)
    endpoint = await server.start()
    session = await ZooKeeperSession.open([f"{host}:{port}", endpoint], 4_000, 30_000, ())
    assert session.clock.state is SessionState.CONNECTED
    await session.detach()
    await server.stop()
    greeting.close()
    assert not complaints


async def test_credentials_that_were_not_looked_at_are_presented_again() -> None:
    server = FakeServer(grant)
    server.refusals[AUTH] = OPERATION_TIMEOUT
    session = await ZooKeeperSession.open([await server.start()], 4_000, 30_000, [("digest", "me:secret")])
    assert len(server.zxids) == 2
    await session.detach()
    await server.stop()


async def test_an_endpoint_that_refuses_does_not_make_a_session_forget_what_it_has_seen() -> None:
    server = FakeServer(grant)
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        async with attached(server, f"127.0.0.1:{refusing.getsockname()[1]}") as session:
            await session.call("/", partial(requests.read, WatchKind.DATA, "/", watched=False))
            server.hang_up()
            await until(lambda: len(server.zxids) == 2)
    assert server.zxids == [0, ZXID]


async def test_a_one_shot_that_a_removal_overtook_is_set_when_it_is_known() -> None:
    """It was left to the recursive watch when it was asked for; the answer came when that was gone."""
    server = FakeServer(grant)
    async with attached(server) as session:
        watch = await session.watch("/a", lambda _: None)
        server.answering.clear()
        asked = asyncio.create_task(session.watched(WatchKind.DATA, "/a", lambda _: None))
        await until(lambda: (EXISTS, framed(b"/a") + b"\0") in server.asked)
        session.unwatch(watch)
        server.answering.set()
        await asked
        await until(lambda: (EXISTS, framed(b"/a") + b"\1") in server.asked)


async def test_one_shots_are_set_again_also_when_all_requests_are_under_way() -> None:
    server = FakeServer(grant)
    async with attached(server) as session:
        watch = await session.watch("/a", lambda _: None)
        await session.watched(WatchKind.DATA, "/a", lambda _: None)
        server.answering.clear()
        read = partial(requests.read, WatchKind.DATA, "/b", watched=False)
        calls = [asyncio.ensure_future(session.call("/b", read)) for _ in range(REQUESTS_IN_FLIGHT_MAX)]
        await until(lambda: not session._calls.has_room)
        session.unwatch(watch)
        server.answering.set()
        await asyncio.gather(*calls)
        await until(lambda: (EXISTS, framed(b"/a") + b"\1") in server.asked)
