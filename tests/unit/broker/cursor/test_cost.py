"""The cost of an acknowledgement, counted: a million holes neither slow it down nor lose one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.cursor.cursor import Cursor, CursorDelta
from heliograph.actors.broker.cursor.index_set import CHUNK_BITS, IndexSet
from heliograph.actors.broker.managed_ledger.chain import LedgerChain, Span

HOLES = 1_000_000
TOUCHES_MAX = 12  # of chunks of the set of acknowledged entries, for one acknowledgement


class CountingChunks(dict[int, int]):
    """The chunks of an IndexSet. Counts how often a chunk is read or changed, and forbids to iterate over all."""

    touches = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.touches += 1
        return super().get(key, default)

    def __setitem__(self, key: int, value: int) -> None:
        self.touches += 1
        super().__setitem__(key, value)

    def pop(self, key: int, *default: Any) -> Any:
        self.touches += 1
        return super().pop(key, *default)

    def __iter__(self) -> Any:
        raise AssertionError("an acknowledgement does not walk over all that is acknowledged")


def cursor_with_holes(holes: int) -> tuple[Cursor, CountingChunks]:
    """Return a cursor with every other entry acknowledged."""
    cursor = Cursor(0)
    every_other = int("10" * (CHUNK_BITS // 2), 2)  # bit 0, an even index, is a hole
    for first in range(0, 2 * holes, CHUNK_BITS):
        left = min(2 * holes - first, CHUNK_BITS)
        cursor.restore_chunk(first, every_other & ((1 << left) - 1))
    chunks = CountingChunks(cursor._acknowledged._chunks)
    cursor._acknowledged._chunks = chunks
    return cursor, chunks


@pytest.fixture(scope="module")
def many() -> tuple[Cursor, CountingChunks]:
    return cursor_with_holes(HOLES)


def touches(cursor: Cursor, chunks: CountingChunks, index: int, bits: int | None = None) -> int:
    chunks.touches = 0
    if bits is None:
        assert cursor.acknowledge(index)
    else:
        cursor.acknowledge_messages(index, bits)
    return chunks.touches


def test_an_acknowledgement_costs_the_same_with_one_hole_and_with_a_million(
    many: tuple[Cursor, CountingChunks],
) -> None:
    few = cursor_with_holes(3)
    for index in (2, 0):  # in the middle, at the mark
        assert touches(*many, index) <= TOUCHES_MAX
        assert touches(*few, index) <= TOUCHES_MAX
    assert touches(*many, HOLES) <= TOUCHES_MAX
    assert touches(*many, 2 * HOLES + 7) <= TOUCHES_MAX
    assert many[0].acknowledged_above_mark == HOLES  # 3 more than before, and 3 that the mark passed
    assert touches(*many, HOLES + 2, bits=0b01) <= TOUCHES_MAX


def test_what_is_written_for_one_does_not_grow_with_the_holes(many: tuple[Cursor, CountingChunks]) -> None:
    cursor, _ = many
    chain = LedgerChain()
    chain.append(7, 3 * HOLES)
    cursor.take_delta()
    cursor.acknowledge(HOLES + 4)
    delta = cursor.take_delta()
    assert delta is not None
    assert len(delta.acknowledged) == 1
    assert len(cursor_record.encode_delta(delta, chain, 0)) < 100


def test_holes_are_told_without_looking_at_them(many: tuple[Cursor, CountingChunks]) -> None:
    cursor, chunks = many
    chunks.touches = 0
    assert cursor.holes > HOLES // 2
    assert chunks.touches == 0


def test_skipping_does_not_look_at_every_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's other clients would wait for it."""
    cursor, _ = cursor_with_holes(HOLES)
    cursor._acknowledged._chunks = dict(dict.items(cursor._acknowledged._chunks))

    def refuse(self: IndexSet) -> None:
        raise AssertionError("nobody shows the runs to people")

    monkeypatch.setattr(IndexSet, "runs", refuse)
    assert cursor.after_open(0) == 0
    assert cursor.after_open(HOLES) == 2 * HOLES - 1
    assert cursor.after_open(HOLES // 2) == HOLES - 1


def test_moving_the_mark_over_a_run_costs_its_chunks_once() -> None:
    cursor, chunks = cursor_with_holes(20 * CHUNK_BITS)
    total = 0
    for index in range(0, 40 * CHUNK_BITS, 2):  # the mark follows, two entries at a time
        total += touches(cursor, chunks, index)
    assert cursor.mark == 40 * CHUNK_BITS
    assert total <= TOUCHES_MAX * 20 * CHUNK_BITS
    assert cursor._acknowledged.count == 0


def test_a_delta_names_runs_by_ledger_and_asks_for_spans_only_where_the_ledger_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = LedgerChain()
    for ledger_id in (1, 3, 4):
        chain.append(ledger_id, 1_000)
    chain.drop_before(3, 1, 1_000)
    entries = sorted(random.Random(1).sample(range(500, 3_000), 1_500))
    expected = [
        (span.ledger_id, span.entry_id, span.length)
        for _, group in itertools.groupby(enumerate(entries), key=lambda pair: pair[1] - pair[0])
        for run in [[index for _, index in group]]
        for span in chain.spans(run[0], len(run))
    ]
    asked: list[int] = []
    spans = LedgerChain.spans

    def counted(self: LedgerChain, first: int, count: int) -> Iterator[Span]:
        asked.append(first)
        return spans(self, first, count)

    monkeypatch.setattr(LedgerChain, "spans", counted)
    record = cursor_record.decode(cursor_record.encode_delta(CursorDelta(False, 0, tuple(entries), (), ()), chain, -1))
    assert record.acknowledged == expected
    assert len([first for first in asked if first >= chain.first]) <= 1
