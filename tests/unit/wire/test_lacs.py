"""Explicit LACs in one frame: its bytes, what is refused, and what a connection makes of them."""

from __future__ import annotations

import asyncio
import struct

import pytest

from heliograph.actors.errors import FrameError
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_request
from heliograph.actors.wire.lacs import LACS_MAX, decode_lacs, encode_lacs
from heliograph.actors.wire.messages import REVISION, BookieOp, BookieRequest, Flag
from tests.unit.wire.range_bookie import Bookie, entry, ok, told, visit, visit_both


def test_lacs_of_more_ledgers_than_a_frame_takes_go_in_two() -> None:  # I15
    lacs = {number: number * 2 for number in range(LACS_MAX + 1)}
    frames = [
        (decode_request(header), bytes(body))
        for frame in encode_lacs(7, lacs)
        for header, body in BookieFrameDecoder().feed(frame)
    ]
    assert [request.request_id for request, _ in frames] == [7, 8]
    assert dict(one for request, body in frames for one in decode_lacs(request, body)) == lacs


@pytest.mark.parametrize(
    ("count", "body", "flags"),
    [
        (1, b"", Flag.NONE),
        (0, b"", Flag.NONE),
        (1, struct.pack(">qq", 1, 2), Flag.RECOVERY),
        (2, struct.pack(">qq", 1, 2), Flag.NONE),
        (1, struct.pack(">qq", -1, 2), Flag.NONE),
        (1, struct.pack(">qq", 1, -1), Flag.NONE),
        (1, struct.pack(">qq", 1, 1 << 48), Flag.NONE),
        (LACS_MAX + 1, struct.pack(">qq", 1, 1) * (LACS_MAX + 1), Flag.NONE),
    ],
)
def test_a_frame_that_is_not_one_of_lacs_is_refused(count: int, body: bytes, flags: Flag) -> None:
    with pytest.raises(FrameError, match="LAC"):
        decode_lacs(BookieRequest(BookieOp.LACS, 1, flags=flags, limit=count), body)


@pytest.mark.parametrize("revision", [1, REVISION])
async def test_the_lacs_of_a_turn_travel_together_to_a_bookie_that_knows_the_frame(revision: int) -> None:
    bookie = Bookie(revision, lambda request, body: b"" if request.op is BookieOp.LACS else ok(request, body))

    async with visit(bookie) as (connection, listener):
        for ledger_id in (1, 2, 1):
            connection.tell_lac(ledger_id, ledger_id + len(bookie.frames), 60_000)
        connection.add(entry(3, 0), listener, 0, 1 << 60)
        await told(listener, 1)
        connection.add(entry(3, 1), listener, 1, 1 << 60)
        await told(listener, 2)
        sent = [request.op for request, _ in bookie.frames]
        if revision == REVISION:
            assert sent == [BookieOp.ADDS, BookieOp.LACS, BookieOp.ADDS]
            assert decode_lacs(*bookie.frames[1]) == [(1, 1), (2, 2)]
        else:
            assert sent == [*[BookieOp.WRITE_LAC] * 3, BookieOp.ADDS, BookieOp.ADDS]
        assert connection.pending_requests == 0, "nothing waits for an answer to LACS"


async def test_the_lacs_of_a_group_are_encoded_once() -> None:
    def hush(request: BookieRequest, body: bytes) -> bytes:
        return b"" if request.op is BookieOp.LACS else ok(request, body)

    one, other = Bookie(REVISION, hush), Bookie(1, hush)

    async with visit_both(one, other) as (copies, listener):
        group = copies.client.group(("b1", "b2"))
        for ledger_id in (1, 2, 1):
            group.tell_lac(ledger_id, ledger_id + 1, 60_000)
        await asyncio.sleep(0)
        copies.add(entry(3, 0), listener, 0)
        await told(listener, 2)
        assert [request.op for request, _ in one.frames] == [BookieOp.LACS, BookieOp.ADD]
        assert decode_lacs(*one.frames[0]) == [(1, 2), (2, 3)]
        told_alone = [(request.ledger_id, request.entry_id) for request, _ in other.frames[:2]]
        assert told_alone == [(1, 2), (2, 3)]  # an older bookie
        group.tell_lac(5, 6, 60_000)
        await asyncio.sleep(0)
        copies.add(entry(3, 1), listener, 1)
        await told(listener, 4)
        (later,) = [frame for frame in one.frames[1:] if frame[0].op is BookieOp.LACS]
        assert decode_lacs(*later) == [(5, 6)], "those of the turn before were told"
