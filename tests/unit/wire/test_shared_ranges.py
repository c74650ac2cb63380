"""Frames that several bookies get: encoded once, answered by each."""

from __future__ import annotations

import pytest

from heliograph.actors.errors import BookieUnavailableError
from heliograph.actors.wire.client import JOINED_BYTES_MAX
from heliograph.actors.wire.frame import encode_answer
from heliograph.actors.wire.group import SHARED_ENTRIES_LEAST
from heliograph.actors.wire.messages import REVISION, Answer, BookieOp, BookieRequest, Status
from heliograph.actors.wire.ranges import encode_stored
from tests.unit.wire.range_bookie import (
    Bookie,
    Copies,
    Written,
    begin_turn,
    entry,
    ok,
    told,
    visit,
    visit_both,
)


async def test_a_frame_is_encoded_once_for_all_its_bookies() -> None:
    one, other = Bookie(REVISION, ok), Bookie(REVISION, ok)

    async with visit_both(one, other) as (copies, listener):
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


async def test_a_bookie_that_lags_gets_a_lone_add_at_once_too() -> None:
    quick = Bookie(REVISION, ok)
    slow = Bookie(REVISION, lambda request, body: b"" if request.op is BookieOp.ADD else ok(request, body))

    async with visit_both(quick, slow) as (copies, listener):
        copies.add(entry(1, 0), listener, 0)
        await told(listener, 1)
        written = Written(copies.by_id["b2"])
        copies.add(entry(1, 1), listener, 1)
        assert written.ops() == [BookieOp.ADD]
        await told(listener, 2)
        assert listener.stored_by == {"b1": [[0], [1]]}
        assert copies.by_id["b2"].pending_requests == 2


async def test_few_entries_of_several_groups_share_the_frame_of_a_bookie() -> None:
    one, other = Bookie(REVISION, ok), Bookie(REVISION, ok)

    async with visit_both(one, other) as (copies, listener):
        for connection in copies.by_id.values():
            begin_turn(connection)
        copies.add(entry(1, 0), listener, 0)
        copies.add(entry(2, 0), listener, 1, names="b1")
        for number in range(SHARED_ENTRIES_LEAST):
            copies.add(entry(3, number), listener, 2 + number, names="b2")
        await told(listener, 3 + SHARED_ENTRIES_LEAST)
        adds = [[request.limit for request, _ in each.frames if request.op is BookieOp.ADDS] for each in (one, other)]
        assert adds == [[2], [1, SHARED_ENTRIES_LEAST]]


@pytest.mark.parametrize("revision", [0, REVISION])
async def test_bookies_of_different_revisions_get_the_same_entries(revision: int) -> None:
    one, other = Bookie(REVISION, ok), Bookie(revision, ok)

    async with visit_both(one, other) as (copies, listener):
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


async def test_a_shared_frame_that_is_answered_in_parts_is_heard_once_each() -> None:
    def in_parts(request: BookieRequest, body: bytes) -> bytes:
        if request.op is not BookieOp.ADDS:
            return ok(request, body)
        first = request.request_id
        refused = encode_answer(Answer(first + 1, Status.DAMAGED))
        return refused + encode_stored([first, first + 2]) + encode_stored(range(first, first + 4))

    bookie = Bookie(REVISION, in_parts)

    async with visit(bookie) as (connection, listener):
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


async def test_a_shared_frame_expires_and_is_lost_entry_by_entry() -> None:
    bookie = Bookie(REVISION, lambda request, body: b"" if request.op is BookieOp.ADDS else ok(request, body))

    async with visit(bookie) as (connection, listener):
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


async def test_a_bookie_without_an_address_is_answered_for() -> None:
    bookie = Bookie(REVISION, ok)

    async with visit(bookie) as (connection, listener):
        copies = Copies(connection)
        for entry_id in range(5):
            copies.add(entry(1, entry_id), listener, entry_id, names="b1 b9")
        await told(listener, 10)
        assert sorted(tag for tags in listener.stored for tag in tags) == [*range(5)]
        assert [tag for tag, _ in listener.alone] == [*range(5)]
        assert all(isinstance(answer, BookieUnavailableError) for _, answer in listener.alone)
