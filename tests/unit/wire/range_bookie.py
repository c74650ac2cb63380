"""A bookie that answers frames ADDS as a test says, connections to it, and a listener that collects what it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from heliograph.actors.errors import BookieError
from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.connections import BookieClient
from heliograph.actors.wire.entry import encode_entry_head
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_request, encode_answer
from heliograph.actors.wire.messages import REVISION, Answer, BookieOp, BookieRequest, Status
from heliograph.actors.wire.ranges import (
    OutgoingEntry,
    encode_stored,
)

Frame = tuple[BookieRequest, bytes]


class Listener:
    """Collects what it is told."""

    def __init__(self) -> None:
        self.stored: list[list[Any]] = []
        self.stored_by: dict[str, list[list[Any]]] = {}
        self.alone: list[tuple[Any, Answer | BookieError]] = []
        self.news = asyncio.Event()

    def on_stored(self, bookie_id: str, tags: Sequence[Any]) -> None:
        self.stored.append(list(tags))
        self.stored_by.setdefault(bookie_id, []).append(list(tags))
        self.news.set()

    def on_add_answer(self, bookie_id: str, tag: Any, answer: Answer | BookieError) -> None:
        self.alone.append((tag, answer))
        self.news.set()


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload") -> OutgoingEntry:
    head = encode_entry_head(ledger_id, entry_id, entry_id - 1, len(payload), payload)
    return OutgoingEntry(ledger_id, entry_id, head, payload)


def packed(ledger_id: int, entry_id: int) -> bytes:
    made = entry(ledger_id, entry_id).in_range()
    assert made is not None
    return made


class Bookie:
    """A listener that answers frames as the test says."""

    def __init__(self, revision: int, answer: Callable[[BookieRequest, bytes], bytes]) -> None:
        self.revision = revision
        self.answer = answer
        self.frames: list[Frame] = []
        self.served: list[asyncio.Task[Any] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await self._serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = BookieFrameDecoder()
        while data := await reader.read(1 << 20):
            for header, body in decoder.feed(data):
                request = decode_request(header)
                if request.op is BookieOp.HELLO:
                    assert request.entry_id == REVISION
                    said = bytes([self.revision]) if self.revision else b""
                    writer.write(encode_answer(Answer(0, Status.OK, text="b1"), said))
                else:
                    self.frames.append((request, bytes(body)))
                    writer.write(self.answer(request, bytes(body)))


class Written:
    """What a connection has written to its socket since now."""

    def __init__(self, connection: BookieConnection) -> None:
        transport = connection.transport
        assert transport is not None
        self._data = bytearray()
        real = transport.write

        def write(data: bytes) -> None:
            self._data += data
            real(data)

        connection.transport = cast(asyncio.WriteTransport, SimpleNamespace(write=write, abort=transport.abort))

    def ops(self) -> list[BookieOp]:
        return [decode_request(header).op for header, _ in BookieFrameDecoder().feed(bytes(self._data))]


class Copies:
    """Sends entries to groups of connections, as a ledger client does."""

    def __init__(self, *connections: BookieConnection) -> None:
        self.by_id = {connection.bookie_id: connection for connection in connections}
        self.client = BookieClient(lambda bookie_id: None, lambda: 0)
        self.client._connections.update(self.by_id)

    def add(self, made: OutgoingEntry, listener: Listener, tag: Any, due: int = 1 << 60, names: str = "") -> None:
        """Send an entry to some bookies: to all by default."""
        group = self.client.group(tuple(sorted(names.split() or self.by_id)))
        group.add(made.ledger_id, made.entry_id, made.head, made.payload, listener, tag, due)


@asynccontextmanager
async def visit(bookie: Bookie) -> AsyncIterator[tuple[BookieConnection, Listener]]:
    """Serve a bookie, and connect to it."""
    server = await asyncio.start_server(bookie.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loop = asyncio.get_running_loop()
    connection, listener = BookieConnection("b1", address, lambda: int(loop.time() * 1000)), Listener()
    first = loop.create_future()
    connection.request(BookieRequest(BookieOp.READ, 0, 1, 0), b"", lambda *_: first.set_result(None), None, 60_000)
    try:
        async with asyncio.timeout(60):
            await first  # it has greeted
            bookie.frames.clear()
            yield connection, listener
    finally:
        connection.close()
        await asyncio.gather(*(task for task in bookie.served if task is not None))
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def visit_both(first: Bookie, second: Bookie) -> AsyncIterator[tuple[Copies, Listener]]:
    """Serve two bookies, and connect to both, which are known as b1 and b2."""
    async with visit(first) as (one, listener), visit(second) as (other, _):
        other.bookie_id = "b2"
        yield Copies(one, other), listener


def begin_turn(connection: BookieConnection) -> None:
    """Send a request at whose side the adds of this turn wait, so that none of them travels alone."""
    connection.request(BookieRequest(BookieOp.WRITE_LAC, 0, 1, 0), b"", lambda *_: None, None, 60_000)


async def told(listener: Listener, count: int) -> None:
    def heard() -> int:
        return sum(map(len, listener.stored)) + len(listener.alone)

    while heard() < count:
        listener.news.clear()
        await listener.news.wait()


def ok(request: BookieRequest, body: bytes) -> bytes:
    if request.op is BookieOp.ADDS:
        return encode_stored(range(request.request_id, request.request_id + request.limit))
    return encode_answer(Answer(request.request_id, Status.OK))
