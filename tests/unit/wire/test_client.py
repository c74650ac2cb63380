"""The connection to a bookie: every request is answered once, also if the socket breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from heliograph.actors.errors import BookieError, BookieUnavailableError
from heliograph.actors.wire.client import ANSWERS_A_SAMPLE, BookieConnection
from heliograph.actors.wire.connections import BookieClient
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_request, encode_answer
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from tests.unit.wire.range_bookie import Listener, entry, told


class Server:
    """A server that answers as the test says and keeps its requests."""

    def __init__(self, answer: Callable[[BookieRequest], bytes | None], port: int = 0) -> None:
        self.answer = answer
        self.port = port
        self.got: list[BookieRequest] = []
        self.bodies: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.chunks = 0
        self.is_over = False

    async def __aenter__(self) -> Server:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_over = True
        self.server.close()
        for writer in self.writers:
            writer.close()
        await self.server.wait_closed()

    async def wait(self, count: int) -> None:
        """Wait for a number of requests."""
        for _ in range(30_000):
            if len(self.got) >= count:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{len(self.got)} requests, {count} expected")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        if self.is_over:  # it connected at the very end
            writer.close()
            return
        decoder = BookieFrameDecoder()
        while data := await reader.read(1 << 20):
            self.chunks += 1
            for header, body in decoder.feed(data):
                request = decode_request(header)
                if request.op is BookieOp.HELLO:
                    writer.write(encode_answer(Answer(0, Status.OK, text="b1")))
                    continue
                self.got.append(request)
                self.bodies.append(bytes(body))
                reply = self.answer(request)
                if reply is not None:
                    writer.write(reply)


class Calls:
    """A callback that collects answers."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, Answer | BookieError, bytes]] = []

    def __call__(self, context: Any, answer: Answer | BookieError, body: memoryview) -> None:
        self.got.append((context, answer, bytes(body)))

    async def wait(self, count: int) -> None:
        for _ in range(30_000):
            if len(self.got) >= count:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{len(self.got)} answers, {count} expected")


def ok(request: BookieRequest) -> bytes:
    return encode_answer(Answer(request.request_id, Status.OK, request.entry_id), b"body")


def now() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


async def test_pipelined_requests_leave_in_few_writes() -> None:
    async with Server(ok) as server:
        connection, calls = BookieConnection("b1", server.address, now), Calls()
        for n in range(500):
            connection.request(BookieRequest(BookieOp.ADD, 0, 1, n), b"entry %d" % n, calls, n, 1_000)
        assert calls.got == []  # never during the call
        await calls.wait(500)
        assert [context for context, _, _ in calls.got] == list(range(500))
        assert server.bodies == [b"entry %d" % n for n in range(500)]
        assert server.chunks < 20
        assert connection.pending_requests == 0
        connection.close()


async def test_the_latency_of_adds_is_noted_however_their_answers_come() -> None:
    held: list[bytes] = []

    def two_at_once(request: BookieRequest) -> bytes | None:
        held.append(ok(request))
        if len(held) % 2:
            return None
        return held.pop(0) + held.pop(0)

    async with Server(two_at_once) as server:
        connection, listener = BookieConnection("b1", server.address, now), Listener()
        for n in range(ANSWERS_A_SAMPLE):
            connection.add(entry(1, 2 * n), listener, 2 * n, now() + 60_000)
            connection.add(entry(1, 2 * n + 1), listener, 2 * n + 1, now() + 60_000)
            await told(listener, 2 * n + 2)
        assert sum(connection.add_latency.counts) == 2
        connection.close()


async def test_a_lost_connection_answers_all_and_the_next_request_connects_again() -> None:
    async with Server(lambda request: ok(request) if request.entry_id else None) as server:
        connection, calls = BookieConnection("b1", server.address, now), Calls()
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 0), b"", calls, "first", 60_000)
        await server.wait(1)
        server.writers[0].close()
        await calls.wait(1)
        assert isinstance(calls.got[0][1], BookieUnavailableError)
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 1), b"", calls, "second", 1_000)
        await calls.wait(2)
        assert calls.got[1][0] == "second"
        assert isinstance(calls.got[1][1], Answer)
        connection.close()


async def test_no_answer_in_time_and_a_late_one() -> None:
    held: list[BookieRequest] = []
    async with Server(lambda request: held.append(request)) as server:
        connection, calls = BookieConnection("b1", server.address, now), Calls()
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, "x", 50)
        await server.wait(1)
        connection.expire(now())
        assert calls.got == []
        connection.expire(now() + 50)
        assert isinstance(calls.got[0][1], BookieUnavailableError)
        server.writers[0].write(ok(held[0]))
        server.answer = ok
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 6), b"", calls, "y", 1_000)
        await calls.wait(2)
        assert [context for context, _, _ in calls.got] == ["x", "y"]  # the late answer was ignored
        connection.close()


async def test_nobody_listens() -> None:
    async with Server(ok) as server:
        address = server.address
    connection, calls = BookieConnection("b1", address, now), Calls()
    connection.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, 1, 1_000)
    await calls.wait(1)
    connection.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, 2, 1_000)  # at once, without another attempt
    assert len(calls.got) == 1
    await calls.wait(2)
    assert all(isinstance(answer, BookieUnavailableError) for _, answer, _ in calls.got)
    connection.close()


async def test_a_bookie_that_is_back_is_reached_at_once() -> None:
    async with Server(ok) as gone:
        address = gone.address
    client, calls = BookieClient(lambda _: address, lambda: 0), Calls()  # the clock stands still: pauses do not end
    connection = client.connection("b1")
    assert connection is not None
    connection.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, 1, 5_000)
    await calls.wait(1)
    async with Server(ok, int(address.rpartition(":")[2])) as server:
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, 2, 5_000)
        await calls.wait(2)
        assert server.got == []  # just after an attempt that failed there is no other
        client.retry_now()
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, 3, 5_000)
        await calls.wait(3)
        assert [type(answer) for _, answer, _ in calls.got] == [BookieUnavailableError] * 2 + [Answer]
        client.close()


async def test_garbage_and_a_stranger_end_the_connection() -> None:
    async with Server(lambda request: b"\xff" * 40) as server:
        connection, calls = BookieConnection("b1", server.address, now), Calls()
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, 1, 1_000)
        await calls.wait(1)
        assert "wire format" in str(calls.got[0][1])
        connection.close()
        server.answer = ok
        other = BookieConnection("b2", server.address, now)
        other.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, 2, 1_000)
        await calls.wait(2)
        assert "another bookie" in str(calls.got[1][1])
        other.close()


async def test_a_bookie_that_moved_gets_a_new_connection() -> None:
    addresses: dict[str, str] = {"b1": "127.0.0.1:1"}
    client = BookieClient(addresses.get, now)
    first = client.connection("b1")
    assert first is not None
    assert client.connection("b1") is first
    assert client.connection("b2") is None
    addresses["b1"] = "127.0.0.1:2"
    second = client.connection("b1")
    assert second is not None
    assert second is not first
    del addresses["b1"]
    assert client.connection("b1") is second  # its last known address is used
    client.close()


async def test_a_bookie_that_moved_is_told_of_later_and_not_within_the_call() -> None:
    async with Server(lambda request: None) as server:
        addresses = {"b1": server.address}
        client, calls = BookieClient(addresses.get, now), Calls()
        connection = client.connection("b1")
        assert connection is not None
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 5), b"", calls, 1, 1_000)
        addresses["b1"] = "127.0.0.1:2"
        assert client.connection("b1") is not connection
        assert calls.got == []  # the caller may be in the middle of a change that the answer would disturb
        await calls.wait(1)
        assert isinstance(calls.got[0][1], BookieUnavailableError)
        client.close()
