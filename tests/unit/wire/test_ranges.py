"""Adds in ranges: frames, runs, and what a connection makes of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.actors.errors import BookieError, BookieUnavailableError, FrameError
from heliograph.actors.wire.client import JOINED_BYTES_MAX, BookieConnection
from heliograph.actors.wire.connections import BookieClient
from heliograph.actors.wire.entry import decode_entry, encode_entry_head
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_request, encode_answer, encode_head
from heliograph.actors.wire.group import SHARED_ENTRIES_LEAST
from heliograph.actors.wire.messages import NUMBER_MAX, REVISION, Answer, BookieOp, BookieRequest, Status
from heliograph.actors.wire.ranges import (
    ALONE_BURST_MAX,
    RANGE_BYTES_MAX,
    RANGE_ENTRIES_MAX,
    RANGED_ENTRY_BYTES_MAX,
    OpenRange,
    OutgoingEntry,
    PendingAdds,
    decode_adds,
    decode_run,
    encode_adds,
    encode_stored,
    runs_of,
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


@pytest.mark.parametrize(
    ("ids", "runs"),
    [
        ([], []),
        ([7], [(7, 7)]),
        ([1, 2, 3], [(1, 3)]),
        ([1, 2, 4, 5], [(1, 2), (4, 5)]),  # 3 was refused
        ([2, 1, 3], [(2, 2), (1, 1), (3, 3)]),
        ([5, 6, 5, 6], [(5, 6), (5, 6)]),  # a frame that came twice
        ([0, 1], [(0, 1)]),
    ],
)
def test_a_run_has_no_gap(ids: list[int], runs: list[tuple[int, int]]) -> None:  # I1
    assert runs_of(ids) == runs


def test_a_run_is_bounded() -> None:  # I15
    assert runs_of(range(RANGE_ENTRIES_MAX + 1)) == [(0, RANGE_ENTRIES_MAX - 1), (RANGE_ENTRIES_MAX, RANGE_ENTRIES_MAX)]


def test_a_frame_has_the_entries_that_were_put() -> None:
    entries = [packed(ledger_id, 3) for ledger_id in (5, 6, 5)]
    ((header, body),) = BookieFrameDecoder().feed(encode_adds(11, entries))
    request = decode_request(header)
    assert (request.op, request.request_id, request.limit) == (BookieOp.ADDS, 11, 3)
    found = [decode_entry(data) for data in decode_adds(request, body)]
    assert [(each.ledger_id, each.entry_id, bytes(each.payload)) for each in found] == [
        (5, 3, b"payload"),
        (6, 3, b"payload"),
        (5, 3, b"payload"),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0},
        {"limit": 1},  # the body has two
        {"limit": RANGE_ENTRIES_MAX + 1},
        {"flags": 1},
        {"request_id": NUMBER_MAX - 1},
    ],
)
def test_a_frame_that_cannot_be_is_refused(fields: dict[str, int]) -> None:
    ((_, body),) = BookieFrameDecoder().feed(encode_adds(1, [packed(1, 0), packed(1, 1)]))
    header = BookieRequest(BookieOp.ADDS, 1, limit=2)
    request = decode_request([*map(int, header._replace(**fields))])  # type: ignore[arg-type]
    with pytest.raises(FrameError):
        decode_adds(request, body)


@pytest.mark.parametrize(
    "header",
    [
        [1, 0, -1, "", 0],
        [0, 0, -1, "", 2],
        [1, 4, -1, "", 2],
        [1.0, 0, -1, "", 2],
        [1, 0, -1, "", "2"],
        [1, 0, 0, "", 1025],
    ],
)
def test_a_run_that_cannot_be_is_refused(header: list[Any]) -> None:
    with pytest.raises(FrameError):
        decode_run(header)


def test_stored_entries_are_answered_by_runs() -> None:
    frames = BookieFrameDecoder().feed(encode_stored([4, 5, 6, 9]))
    assert [decode_run(header) for header, _ in frames] == [(4, 6), (9, 9)]


def test_a_large_entry_travels_alone() -> None:
    assert OutgoingEntry(1, 0, bytes(40), bytes(RANGED_ENTRY_BYTES_MAX - 40)).in_range() is not None
    assert OutgoingEntry(1, 0, bytes(40), bytes(RANGED_ENTRY_BYTES_MAX - 39)).in_range() is None


def test_an_open_range_has_two_bounds() -> None:  # I15
    open_range = OpenRange()
    assert open_range.put(1, bytes(RANGE_BYTES_MAX - 10))
    assert not open_range.put(2, bytes(11))
    assert open_range.put(2, bytes(10))
    written: list[bytes] = []
    open_range.take(written.append)
    open_range.take(written.append)
    assert len(written) == 1
    assert all(open_range.put(request_id, bytes(4)) for request_id in range(RANGE_ENTRIES_MAX))
    assert not open_range.put(RANGE_ENTRIES_MAX, bytes(4))


def test_each_add_is_answered_once() -> None:
    pending, one, other = PendingAdds(), Listener(), Listener()
    for request_id in range(1, 7):
        pending[request_id] = (one if request_id % 2 else other, request_id, 100)
    assert pending.take(3) == (one, 3)
    assert pending.take_run(1, 4) == [(one, [1]), (other, [2, 4])]
    assert pending.take_run(1, 5) == [(one, [5])]  # late and split answers
    assert pending.take(3) is None
    pending[7] = (one, 7, 101)
    assert pending.take_expired(99) == []
    assert pending.take_expired(100) == [(other, 6)]
    assert pending.take_all() == [(one, 7)]


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


Scene = Callable[[BookieConnection, Listener], Awaitable[None]]


def play(bookie: Bookie, scene: Scene) -> None:
    asyncio.run(visit(bookie, scene))


async def visit(bookie: Bookie, scene: Scene) -> None:
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
            await scene(connection, listener)
    finally:
        connection.close()
        await asyncio.gather(*(task for task in bookie.served if task is not None))
        server.close()
        await server.wait_closed()


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


def test_the_adds_of_a_turn_travel_in_one_frame_and_are_heard_in_one_call() -> None:
    bookie = Bookie(REVISION, ok)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        other = Listener()
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
            connection.add(entry(2, entry_id), other, -entry_id, 1 << 60)
        await told(listener, 3)
        assert listener.stored == [[0, 1, 2]]
        assert other.stored == [[0, -1, -2]]
        assert [request.op for request, _ in bookie.frames] == [BookieOp.WRITE_LAC, BookieOp.ADDS]
        assert connection.pending_requests == 0

    play(bookie, scene)


def test_other_requests_keep_their_place_among_adds() -> None:
    bookie = Bookie(REVISION, ok)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        copies = Copies(connection)
        copies.add(entry(1, 0), listener, 0)
        connection.request(BookieRequest(BookieOp.WRITE_LAC, 0, 1, 0), b"", lambda *_: None, None, 60_000)
        copies.add(entry(1, 1), listener, 1)
        copies.add(entry(1, 2, bytes(RANGED_ENTRY_BYTES_MAX)), listener, 2)
        await told(listener, 3)
        ops = [request.op for request, _ in bookie.frames]
        assert ops == [BookieOp.ADD, BookieOp.WRITE_LAC, BookieOp.ADDS, BookieOp.ADD]
        assert listener.stored == [[0], [1], [2]]

    play(bookie, scene)


def test_a_lone_add_leaves_at_once_and_those_behind_it_wait_for_the_turns_end() -> None:
    bookie = Bookie(REVISION, ok)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        copies = Copies(connection)
        written = Written(connection)
        copies.add(entry(1, 0), listener, 0)
        assert written.ops() == [BookieOp.ADD]  # in this call
        copies.add(entry(1, 1), listener, 1, 1 << 60)  # one waits for its answer
        copies.add(entry(1, 2), listener, 2)
        assert written.ops() == [BookieOp.ADD]
        await told(listener, 3)
        assert written.ops() == [BookieOp.ADD, BookieOp.ADDS]
        assert listener.stored == [[0], [1, 2]]
        copies.add(entry(1, 3), listener, 3)
        assert written.ops() == [BookieOp.ADD, BookieOp.ADDS, BookieOp.ADD]
        await told(listener, 4)

    play(bookie, scene)


def test_behind_a_burst_an_add_waits_for_the_others_of_its_turn() -> None:
    bookie = Bookie(REVISION, ok)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        copies = Copies(connection)
        for entry_id in range(ALONE_BURST_MAX + 1):
            copies.add(entry(1, entry_id), listener, entry_id)
        await told(listener, ALONE_BURST_MAX + 1)
        written = Written(connection)
        copies.add(entry(1, 10), listener, 10)
        copies.add(entry(1, 11), listener, 11)
        assert written.ops() == []
        await told(listener, ALONE_BURST_MAX + 3)
        assert written.ops() == [BookieOp.ADDS]
        copies.add(entry(1, 12), listener, 12)
        assert written.ops() == [BookieOp.ADDS, BookieOp.ADD]
        await told(listener, ALONE_BURST_MAX + 4)

    play(bookie, scene)


def test_a_lone_add_overtakes_nothing() -> None:
    bookie = Bookie(REVISION, ok)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        copies = Copies(connection)
        written = Written(connection)
        begin_turn(connection)
        copies.add(entry(1, 0), listener, 0)
        assert written.ops() == []
        await told(listener, 1)
        assert written.ops() == [BookieOp.WRITE_LAC, BookieOp.ADDS]

    play(bookie, scene)


def beside_another(first: Bookie, second: Bookie, scene: Callable[[Copies, Listener], Awaitable[None]]) -> None:
    """Play a scene with two bookies, which are known as b1 and b2."""

    async def with_first(one: BookieConnection, listener: Listener) -> None:
        async def with_second(other: BookieConnection, _: Listener) -> None:
            other.bookie_id = "b2"
            await scene(Copies(one, other), listener)

        await visit(second, with_second)

    play(first, with_first)


def test_a_frame_is_encoded_once_for_all_its_bookies() -> None:
    one, other = Bookie(REVISION, ok), Bookie(REVISION, ok)

    async def scene(copies: Copies, listener: Listener) -> None:
        copies.add(entry(1, 0), listener, 0)  # alone
        for entry_id in range(1, 5):
            copies.add(entry(1, entry_id), listener, entry_id)
        copies.add(entry(1, 5, bytes(JOINED_BYTES_MAX)), listener, 5)  # large
        await told(listener, 12)
        for bookie_id in ("b1", "b2"):
            assert sorted(tag for tags in listener.stored_by[bookie_id] for tag in tags) == [*range(6)]
        assert [request.op for request, _ in one.frames] == [BookieOp.ADD, BookieOp.ADDS, BookieOp.ADD]
        assert one.frames == other.frames
        assert [each.pending_requests for each in copies.by_id.values()] == [0, 0]

    beside_another(one, other, scene)


def test_a_bookie_that_lags_gets_a_lone_add_at_once_too() -> None:
    quick = Bookie(REVISION, ok)
    slow = Bookie(REVISION, lambda request, body: b"" if request.op is BookieOp.ADD else ok(request, body))

    async def scene(copies: Copies, listener: Listener) -> None:
        copies.add(entry(1, 0), listener, 0)
        await told(listener, 1)
        written = Written(copies.by_id["b2"])
        copies.add(entry(1, 1), listener, 1)
        assert written.ops() == [BookieOp.ADD]
        await told(listener, 2)
        assert listener.stored_by == {"b1": [[0], [1]]}
        assert copies.by_id["b2"].pending_requests == 2

    beside_another(quick, slow, scene)


def test_few_entries_of_several_groups_share_the_frame_of_a_bookie() -> None:
    one, other = Bookie(REVISION, ok), Bookie(REVISION, ok)

    async def scene(copies: Copies, listener: Listener) -> None:
        for connection in copies.by_id.values():
            begin_turn(connection)
        copies.add(entry(1, 0), listener, 0)
        copies.add(entry(2, 0), listener, 1, names="b1")
        for number in range(SHARED_ENTRIES_LEAST):
            copies.add(entry(3, number), listener, 2 + number, names="b2")
        await told(listener, 3 + SHARED_ENTRIES_LEAST)
        adds = [[request.limit for request, _ in each.frames if request.op is BookieOp.ADDS] for each in (one, other)]
        assert adds == [[2], [1, SHARED_ENTRIES_LEAST]]

    beside_another(one, other, scene)


@pytest.mark.parametrize("revision", [0, REVISION])
def test_bookies_of_different_revisions_get_the_same_entries(revision: int) -> None:
    one, other = Bookie(REVISION, ok), Bookie(revision, ok)

    async def scene(copies: Copies, listener: Listener) -> None:
        for connection in copies.by_id.values():
            begin_turn(connection)
        for entry_id in range(6):
            copies.add(entry(1, entry_id), listener, entry_id)
        await told(listener, 12)
        for bookie_id in ("b1", "b2"):
            assert [tag for tags in listener.stored_by[bookie_id] for tag in tags] == [*range(6)]
        assert {request.op for request, _ in other.frames} == {
            BookieOp.WRITE_LAC,
            BookieOp.ADDS if revision else BookieOp.ADD,
        }

    beside_another(one, other, scene)


def test_a_shared_frame_that_is_answered_in_parts_is_heard_once_each() -> None:
    def in_parts(request: BookieRequest, body: bytes) -> bytes:
        if request.op is not BookieOp.ADDS:
            return ok(request, body)
        first = request.request_id
        refused = encode_answer(Answer(first + 1, Status.DAMAGED))
        return refused + encode_stored([first, first + 2]) + encode_stored(range(first, first + 4))

    bookie = Bookie(REVISION, in_parts)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        copies = Copies(connection)
        begin_turn(connection)
        for entry_id in range(5):
            copies.add(entry(1, entry_id), listener, entry_id)
        await told(listener, 4)
        assert listener.stored == [[0], [2], [3]]
        assert [tag for tag, _ in listener.alone] == [1]
        assert connection.adds.in_ranges == 1
        connection.expire(1 << 60)
        assert [tag for tag, _ in listener.alone] == [1, 4]
        assert connection.pending_requests == 0

    play(bookie, scene)


def test_a_shared_frame_expires_and_is_lost_entry_by_entry() -> None:
    bookie = Bookie(REVISION, lambda request, body: b"" if request.op is BookieOp.ADDS else ok(request, body))

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        copies = Copies(connection)
        for first in (0, 5):
            begin_turn(connection)
            for entry_id in range(first, first + 5):
                copies.add(entry(1, entry_id), listener, entry_id, 100 + first)
            copies.client._end_turn()
        assert connection.adds.in_ranges == 10
        connection.expire(99)
        assert listener.alone == []
        connection.expire(100)
        assert [tag for tag, _ in listener.alone] == [0, 1, 2, 3, 4]
        connection.close()
        assert [tag for tag, _ in listener.alone] == [*range(10)]
        assert connection.pending_requests == 0

    play(bookie, scene)


def test_a_bookie_without_an_address_is_answered_for() -> None:
    bookie = Bookie(REVISION, ok)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        copies = Copies(connection)
        for entry_id in range(5):
            copies.add(entry(1, entry_id), listener, entry_id, names="b1 b9")
        await told(listener, 10)
        assert sorted(tag for tags in listener.stored for tag in tags) == [*range(5)]
        assert [tag for tag, _ in listener.alone] == [*range(5)]
        assert all(isinstance(answer, BookieUnavailableError) for _, answer in listener.alone)

    play(bookie, scene)


def test_an_older_bookie_gets_single_adds() -> None:
    bookie = Bookie(0, ok)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        for entry_id in range(2):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
        await told(listener, 2)
        assert [(request.op, request.entry_id) for request, _ in bookie.frames] == [
            (BookieOp.ADD, 0),
            (BookieOp.ADD, 1),
        ]
        assert listener.stored == [[0], [1]]
        assert listener.alone == []

    play(bookie, scene)


def test_a_refused_entry_is_heard_alone() -> None:
    def refuse_the_second(request: BookieRequest, body: bytes) -> bytes:
        if request.op is not BookieOp.ADDS:
            return ok(request, body)
        first = request.request_id
        return encode_answer(Answer(first + 1, Status.DAMAGED)) + encode_stored([first, first + 2])

    bookie = Bookie(REVISION, refuse_the_second)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
        await told(listener, 3)
        assert listener.stored == [[0], [2]]
        ((tag, answer),) = listener.alone
        assert tag == 1
        assert isinstance(answer, Answer)
        assert answer.status is Status.DAMAGED

    play(bookie, scene)


def test_a_run_that_names_a_refused_entry_stores_nothing_of_it() -> None:
    def refuse_then_name(request: BookieRequest, body: bytes) -> bytes:
        if request.op is not BookieOp.ADDS:
            return ok(request, body)
        first = request.request_id
        return encode_answer(Answer(first + 1, Status.FENCED)) + encode_stored(range(first, first + 3))

    bookie = Bookie(REVISION, refuse_then_name)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
        await told(listener, 3)
        assert listener.stored == [[0, 2]]
        assert [tag for tag, _ in listener.alone] == [1]

    play(bookie, scene)


def test_adds_of_a_lost_connection_fail_each() -> None:
    def garbage(request: BookieRequest, body: bytes) -> bytes:
        return (
            encode_head([1, 0, -1, "", RANGE_ENTRIES_MAX + 1], 0) if request.op is BookieOp.ADDS else ok(request, body)
        )

    bookie = Bookie(REVISION, garbage)

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
        await told(listener, 3)
        assert [tag for tag, _ in listener.alone] == [0, 1, 2]
        assert all(isinstance(answer, BookieUnavailableError) for _, answer in listener.alone)

    play(bookie, scene)


def test_adds_without_an_answer_expire_each() -> None:
    bookie = Bookie(REVISION, lambda request, body: b"" if request.op is BookieOp.ADDS else ok(request, body))

    async def scene(connection: BookieConnection, listener: Listener) -> None:
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 100 + entry_id)
        connection.expire(101)
        assert [tag for tag, _ in listener.alone] == [0, 1]
        assert connection.pending_requests == 2  # with that which began the turn

    play(bookie, scene)
