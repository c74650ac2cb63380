"""The client's connection to a ZooKeeper server, against bytes that no server should send."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Exists, GetData

from heliograph.metadata.backends.zookeeper.connection import ANSWER_BYTES_MAX, ZooKeeperConnection
from heliograph.metadata.errors import ConnectionLossError

GRANTED = struct.pack("!iiq", 0, 4_000, 7) + struct.pack("!i", 16) + bytes(16) + b"\0"
NO_NODE = -101


def framed(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


def reply(xid: int, error: int = 0, body: bytes = b"") -> bytes:
    return framed(struct.pack("!iqi", xid, 5, error) + body)


@contextlib.asynccontextmanager
async def connected(answers: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[ZooKeeperConnection]:
    """Connect to a server that grants a session, and then sends what ``answers`` writes to the first request."""

    has_ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(struct.unpack("!i", await reader.readexactly(4))[0])
        for byte in framed(GRANTED):  # in as many pieces as it has bytes
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        await reader.readexactly(4)
        answers(writer)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        has_ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = ZooKeeperConnection(lambda *_: None, lambda _: None)
    host, port = server.sockets[0].getsockname()
    try:
        granted = await connection.open(f"{host}:{port}", 30, lambda: connection.begin(4_000, 0, b"", 0, ()))
        assert (granted.session_id, granted.time_out) == (7, 4_000)
        yield connection
    finally:
        connection.abort()
        await has_ended.wait()
        server.close()
        await server.wait_closed()


async def test_answers_come_in_the_order_of_the_requests() -> None:
    def answers(writer: asyncio.StreamWriter) -> None:
        writer.write(reply(1, NO_NODE) + reply(2, body=struct.pack("!i", -1) + bytes(68)))

    async with connected(answers) as connection:
        missing, found = await asyncio.gather(connection.ask(Exists("/a", None)), connection.ask(GetData("/b", None)))
        assert missing is None
        assert found[0] is None
        assert connection.zxid == 5


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(reply(2), id="an answer out of order"),
        pytest.param(reply(1, -9_999), id="an error that is unknown"),
        pytest.param(reply(1), id="an answer without its stat"),
        pytest.param(framed(b"\0"), id="a frame without a header"),
        pytest.param(struct.pack("!i", ANSWER_BYTES_MAX + 1), id="a frame above the limit"),
        pytest.param(struct.pack("!i", -1), id="a frame of less than nothing"),
    ],
)
async def test_bytes_that_are_not_the_protocol_end_the_connection(sent: bytes) -> None:
    async with connected(lambda writer: writer.write(sent)) as connection:
        with pytest.raises(ConnectionLoss):
            await connection.ask(Exists("/a", None))
        with pytest.raises(ConnectionLoss):
            await connection.ask(Exists("/a", None))


async def test_a_name_that_no_host_can_have_is_not_resolved() -> None:
    connection = ZooKeeperConnection(lambda *_: None, lambda _: None)
    with pytest.raises(ConnectionLossError, match="cannot be resolved"):
        await connection.open(f"{'a' * 64}.example:2181", 30, lambda: connection.begin(4_000, 0, b"", 0, ()))
    connection.abort()


async def test_a_server_that_hangs_up_has_granted_no_session() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    connection = ZooKeeperConnection(lambda *_: None, lambda _: None)
    with pytest.raises(ConnectionLossError, match="grants no session"):
        await connection.open(f"{host}:{port}", 30, lambda: connection.begin(4_000, 0, b"", 0, ()))
    connection.abort()
    server.close()
    await server.wait_closed()
