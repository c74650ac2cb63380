"""Plans: cutting, splitting and serialising ledger ranges loses no entry and repeats none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import BadRequestError
from heliograph.metadata.model import LedgerMetadata, Segment
from heliograph.pipelines.planning.ranges import (
    ENTRY_BYTES_GUESS,
    TASK_BYTES_MAX,
    LedgerRange,
    cut,
    narrow,
    range_from_json,
    range_of,
    split,
)

ADDRESSES = {"b1": "10.0.0.1:1", "b2": "10.0.0.2:1", "b3": "10.0.0.3:1"}


def ledger(ledger_id: int, *segments: tuple[int, tuple[str, ...]]) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        segments=tuple(Segment(first, bookies) for first, bookies in segments or ((0, ("b1", "b2")),)),
    )


def a_range(first: int, last: int, ledger_id: int = 7, partition: int = -1) -> LedgerRange:
    return range_of("persistent://public/default/t", partition, ledger(ledger_id), first, last, ADDRESSES)


def entries_of(ranges: list[LedgerRange]) -> list[tuple[int, int, int]]:
    return [
        (piece.partition, piece.ledger_id, entry)
        for piece in ranges
        for entry in range(piece.first_entry_id, piece.last_entry_id + 1)
    ]


def test_a_range_keeps_the_segments_up_to_its_end_and_their_addresses() -> None:
    record = ledger(7, (0, ("b1", "b2")), (10, ("b3", "b2")), (20, ("b3", "b4")))
    piece = range_of("t", -1, record, 5, 12, ADDRESSES)
    assert [segment.first_entry_id for segment in piece.segments] == [0, 10]
    assert dict(piece.addresses) == ADDRESSES  # b4 is in no segment of the range
    assert range_of("t", -1, record, 0, 9, ADDRESSES).segments == (Segment(0, ("b1", "b2")),)
    last = range_of("t", -1, record, 25, 30, ADDRESSES)
    assert last.segments == record.segments  # I8; a message in chunks may begin in an earlier one
    assert dict(last.addresses) == ADDRESSES  # b4 is not registered


def test_the_record_for_readers_names_the_right_segment_and_ends_with_the_range() -> None:
    record = range_of("t", -1, ledger(7, (0, ("b1", "b2")), (10, ("b3", "b2"))), 10, 15, ADDRESSES).record()
    assert record.segment_of(12).bookies == ("b3", "b2")
    assert record.is_closed
    assert record.last_entry_id == 15  # I3


def test_a_range_survives_json() -> None:
    piece = range_of("t", 2, ledger(7, (0, ("b1", "b2")), (10, ("b3", "b2"))), 5, 12, ADDRESSES)
    assert range_from_json(piece.to_json()) == piece


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"format": 99}', json.dumps({"format": 1, "topic": "t"})])
def test_other_text_is_no_range(text: str) -> None:
    with pytest.raises(BadRequestError):
        range_from_json(text)


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 300), st.sampled_from([0, 9_000, 1 << 30])), max_size=6
    ),
    tasks=st.integers(1, 40),
    task_bytes_min=st.sampled_from([1, 1 << 20, TASK_BYTES_MAX]),
    entries_max=st.integers(1, 100),
)
def test_splitting_keeps_every_entry_once_and_in_order(
    spans: list[tuple[int, int, int]], tasks: int, task_bytes_min: int, entries_max: int
) -> None:
    ranges = [
        replace(a_range(first, first + length, ledger_id), size=size)
        for ledger_id, (first, length, size) in enumerate(spans)
    ]
    work = split(ranges, tasks, task_bytes_min, entries_max)
    assert entries_of([piece for pieces in work for piece in pieces]) == entries_of(ranges)
    sizes = [sum(piece.entries for piece in pieces) for pieces in work]
    assert all(0 < size <= entries_max for size in sizes)  # I15
    for pieces in work:
        but_one = sum(piece.entry_bytes * piece.entries for piece in pieces) - pieces[-1].entry_bytes
        assert but_one < TASK_BYTES_MAX  # I15
    for pieces in work[:-1]:
        is_full = sum(piece.entries for piece in pieces) == entries_max
        assert is_full or sum(piece.entry_bytes * piece.entries for piece in pieces) >= task_bytes_min


def test_a_part_of_a_range_has_its_share_of_the_bytes() -> None:
    whole = replace(a_range(0, 99), size=1_000_000)
    part = narrow(whole, 10, 19)
    assert (part.size, part.entry_bytes) == (100_000, 10_000)
    assert range_from_json(part.to_json()) == part
    unknown = replace(part, size=0)
    assert unknown.entry_bytes == ENTRY_BYTES_GUESS
    before = json.loads(unknown.to_json()) | {"format": 3}
    del before["size"]
    assert range_from_json(json.dumps(before)) == unknown


def test_cutting_takes_from_the_start_up_to_the_end() -> None:
    ranges = [a_range(0, 9, 1, 0), a_range(0, 9, 2, 0), a_range(0, 9, 3, 1)]
    wanted = cut(ranges, {0: (1, 8)}, {0: (2, 2), 1: (3, 4)})
    assert entries_of(wanted) == [
        *((0, 1, entry) for entry in (8, 9)),
        *((0, 2, entry) for entry in (0, 1)),
        *((1, 3, entry) for entry in range(4)),
    ]


def test_cutting_at_a_trimmed_or_future_position() -> None:
    ranges = [a_range(3, 9, 5)]
    assert entries_of(cut(ranges, {-1: (2, 100)})) == entries_of(ranges)  # the start was trimmed since
    assert cut(ranges, {-1: (5, 10)}) == []
    assert cut(ranges, {-1: (6, 0)}) == []
    assert cut(ranges, None, {-1: (5, 3)}) == []


def test_narrowing_drops_segments_and_addresses_that_are_not_needed() -> None:
    piece = range_of("t", -1, ledger(7, (0, ("b1", "b2")), (10, ("b3", "b2"))), 0, 20, ADDRESSES)
    part = narrow(piece, 3, 7)
    assert part.segments == (Segment(0, ("b1", "b2")),)
    assert set(dict(part.addresses)) == {"b1", "b2"}
    assert narrow(piece, 11, 12).segments == piece.segments
    assert narrow(piece, 0, 20) is piece
