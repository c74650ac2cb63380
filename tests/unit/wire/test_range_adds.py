"""What a connection makes of adds: frames of several, single adds, answers, expiry and loss."""

from __future__ import annotations

from heliograph.actors.errors import BookieUnavailableError
from heliograph.actors.wire.frame import encode_answer, encode_head
from heliograph.actors.wire.messages import REVISION, Answer, BookieOp, BookieRequest, Status
from heliograph.actors.wire.ranges import (
    ALONE_BURST_MAX,
    RANGE_ENTRIES_MAX,
    RANGED_ENTRY_BYTES_MAX,
    encode_stored,
)
from tests.unit.wire.range_bookie import (
    Bookie,
    Copies,
    Listener,
    Written,
    begin_turn,
    entry,
    ok,
    told,
    visit,
)


async def test_the_adds_of_a_turn_travel_in_one_frame_and_are_heard_in_one_call() -> None:
    bookie = Bookie(REVISION, ok)

    async with visit(bookie) as (connection, listener):
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


async def test_other_requests_keep_their_place_among_adds() -> None:
    bookie = Bookie(REVISION, ok)

    async with visit(bookie) as (connection, listener):
        copies = Copies(connection)
        copies.add(entry(1, 0), listener, 0)
        connection.request(BookieRequest(BookieOp.WRITE_LAC, 0, 1, 0), b"", lambda *_: None, None, 60_000)
        copies.add(entry(1, 1), listener, 1)
        copies.add(entry(1, 2, bytes(RANGED_ENTRY_BYTES_MAX)), listener, 2)
        await told(listener, 3)
        ops = [request.op for request, _ in bookie.frames]
        assert ops == [BookieOp.ADD, BookieOp.WRITE_LAC, BookieOp.ADDS, BookieOp.ADD]
        assert listener.stored == [[0], [1], [2]]


async def test_a_lone_add_leaves_at_once_and_those_behind_it_wait_for_the_turns_end() -> None:
    bookie = Bookie(REVISION, ok)

    async with visit(bookie) as (connection, listener):
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


async def test_behind_a_burst_an_add_waits_for_the_others_of_its_turn() -> None:
    bookie = Bookie(REVISION, ok)

    async with visit(bookie) as (connection, listener):
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


async def test_a_lone_add_overtakes_nothing() -> None:
    bookie = Bookie(REVISION, ok)

    async with visit(bookie) as (connection, listener):
        copies = Copies(connection)
        written = Written(connection)
        begin_turn(connection)
        copies.add(entry(1, 0), listener, 0)
        assert written.ops() == []
        await told(listener, 1)
        assert written.ops() == [BookieOp.WRITE_LAC, BookieOp.ADDS]


async def test_an_older_bookie_gets_single_adds() -> None:
    bookie = Bookie(0, ok)

    async with visit(bookie) as (connection, listener):
        for entry_id in range(2):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
        await told(listener, 2)
        assert [(request.op, request.entry_id) for request, _ in bookie.frames] == [
            (BookieOp.ADD, 0),
            (BookieOp.ADD, 1),
        ]
        assert listener.stored == [[0], [1]]
        assert listener.alone == []


async def test_a_refused_entry_is_heard_alone() -> None:
    def refuse_the_second(request: BookieRequest, body: bytes) -> bytes:
        if request.op is not BookieOp.ADDS:
            return ok(request, body)
        first = request.request_id
        return encode_answer(Answer(first + 1, Status.DAMAGED)) + encode_stored([first, first + 2])

    bookie = Bookie(REVISION, refuse_the_second)

    async with visit(bookie) as (connection, listener):
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
        await told(listener, 3)
        assert listener.stored == [[0], [2]]
        ((tag, answer),) = listener.alone
        assert tag == 1
        assert isinstance(answer, Answer)
        assert answer.status is Status.DAMAGED


async def test_a_run_that_names_a_refused_entry_stores_nothing_of_it() -> None:
    def refuse_then_name(request: BookieRequest, body: bytes) -> bytes:
        if request.op is not BookieOp.ADDS:
            return ok(request, body)
        first = request.request_id
        return encode_answer(Answer(first + 1, Status.FENCED)) + encode_stored(range(first, first + 3))

    bookie = Bookie(REVISION, refuse_then_name)

    async with visit(bookie) as (connection, listener):
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
        await told(listener, 3)
        assert listener.stored == [[0, 2]]
        assert [tag for tag, _ in listener.alone] == [1]


async def test_adds_of_a_lost_connection_fail_each() -> None:
    def garbage(request: BookieRequest, body: bytes) -> bytes:
        return (
            encode_head([1, 0, -1, "", RANGE_ENTRIES_MAX + 1], 0) if request.op is BookieOp.ADDS else ok(request, body)
        )

    bookie = Bookie(REVISION, garbage)

    async with visit(bookie) as (connection, listener):
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 1 << 60)
        await told(listener, 3)
        assert [tag for tag, _ in listener.alone] == [0, 1, 2]
        assert all(isinstance(answer, BookieUnavailableError) for _, answer in listener.alone)


async def test_adds_without_an_answer_expire_each() -> None:
    bookie = Bookie(REVISION, lambda request, body: b"" if request.op is BookieOp.ADDS else ok(request, body))

    async with visit(bookie) as (connection, listener):
        begin_turn(connection)
        for entry_id in range(3):
            connection.add(entry(1, entry_id), listener, entry_id, 100 + entry_id)
        connection.expire(101)
        assert [tag for tag, _ in listener.alone] == [0, 1]
        assert connection.pending_requests == 2  # with that which began the turn
