"""Adds in ranges: frames, runs and their bounds."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.actors.errors import FrameError
from heliograph.actors.wire.entry import decode_entry
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_request
from heliograph.actors.wire.messages import NUMBER_MAX, BookieOp, BookieRequest
from heliograph.actors.wire.ranges import (
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
from tests.unit.wire.range_bookie import (
    Listener,
    packed,
)


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
