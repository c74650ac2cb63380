"""Reads: plans, answers, other replicas, bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.actors.errors import EntryDamagedError, LedgerError, NoSuchEntryError, QuorumLostError
from heliograph.actors.ledger.effects import (
    CopyDamaged,
    Failed,
    LacFound,
    ReadBatch,
    ReadFinished,
    ReadLac,
    Reply,
)
from heliograph.actors.ledger.lac import LacReadCore
from heliograph.actors.ledger.limits import ReaderLimits
from heliograph.actors.ledger.placement.health import (
    BOOKIES_REMEMBERED_MAX,
    FAILURE_MEMORY_MS,
    SLOW_MEMORY_MS,
    BookieHealth,
)
from heliograph.actors.ledger.reader import ReadCore, check_range
from heliograph.metadata.model import LedgerState, Segment
from tests.unit.ledger.cores import entry, ledger, only, some

CLOSED = ledger(state=LedgerState.CLOSED, last=99).record


def read(first: int, last: int, record: object = CLOSED, max_bytes: int = 1 << 20) -> ReadCore:
    return ReadCore(record, first, last, max_bytes, BookieHealth(), ReaderLimits(speculative_ms=100))  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "last"), [(0, 100), (100, 100), (-1, 3), (5, 4)])
def test_ranges_that_may_not_be_read(first: int, last: int) -> None:
    with pytest.raises(NoSuchEntryError):  # I3
        check_range(CLOSED, first, last, 10**9)
    with pytest.raises(NoSuchEntryError):
        check_range(ledger().record, first, last, 99)


def test_ranges_that_may_be_read() -> None:
    check_range(CLOSED, 99, 99, -1)
    check_range(ledger().record, 0, 99, 99)


def test_one_bookie_serves_a_sequence() -> None:
    core = read(10, 20)
    request = only(ReadBatch, core.start(0))
    assert (request.first_entry_id, request.last_entry_id) == (10, 20)
    finished = only(ReadFinished, core.on_batch_answer(1, Reply.OK, [entry(n) for n in range(10, 15)], 0))
    assert [e.entry_id for e in finished.entries] == [10, 11, 12, 13, 14]


def test_one_bookie_serves_all_reads_of_a_ledger() -> None:
    """It reads ahead for a reader that goes on where its last batch ended."""
    asked = {only(ReadBatch, read(first, 99).start(0)).bookie_id for first in range(12)}
    assert len(asked) == 1
    other = replace(CLOSED, ledger_id=CLOSED.ledger_id + 1)
    assert {only(ReadBatch, read(0, 99, other).start(0)).bookie_id}.isdisjoint(asked)


def test_a_batch_ends_with_its_segment() -> None:
    record = ledger(state=LedgerState.CLOSED, last=99, more_segments=(Segment(50, ("b1", "b2", "b4")),)).record
    requests = some(ReadBatch, read(45, 60, record).start(0))
    assert [(r.first_entry_id, r.last_entry_id) for r in requests] == [(45, 49), (50, 60)]


def test_striped_runs_are_read_at_once_and_put_in_order() -> None:
    record = ledger("b1 b2 b3 b4", write_quorum=2, state=LedgerState.CLOSED, last=99).record
    core = read(0, 9, record)
    requests = some(ReadBatch, core.start(0))
    covered = [n for r in requests for n in range(r.first_entry_id, r.last_entry_id + 1)]
    assert covered == list(range(10))
    effects = []
    for r in reversed(requests):
        names = record.segments[0].bookies
        for n in range(r.first_entry_id, r.last_entry_id + 1):
            assert r.bookie_id in (names[n % 4], names[(n + 1) % 4])
        answer = [entry(n) for n in range(r.first_entry_id, r.last_entry_id + 1)]
        effects += core.on_batch_answer(r.request, Reply.OK, answer, 0)
    assert [e.entry_id for e in only(ReadFinished, effects).entries] == list(range(10))


def test_the_size_is_bounded_but_one_entry_always_comes() -> None:
    core = read(0, 9, max_bytes=100)
    core.start(0)
    finished = only(ReadFinished, core.on_batch_answer(1, Reply.OK, [entry(n, bytes(60)) for n in range(3)], 0))
    assert len(finished.entries) == 1
    core = read(0, 9, max_bytes=10)
    assert only(ReadBatch, core.start(0)).max_bytes == 10
    assert only(ReadFinished, core.on_batch_answer(1, Reply.OK, [entry(0, bytes(60))], 0)).entries


def test_more_than_was_asked_for_is_cut() -> None:
    core = read(0, 1)
    core.start(0)
    finished = only(ReadFinished, core.on_batch_answer(1, Reply.OK, [entry(n) for n in range(5)], 0))
    assert [e.entry_id for e in finished.entries] == [0, 1]  # I3


def test_another_entry_than_asked_for_is_a_damaged_copy() -> None:
    core = read(5, 9)
    first = only(ReadBatch, core.start(0))
    effects = core.on_batch_answer(1, Reply.OK, [entry(4)], 0)
    assert only(CopyDamaged, effects).bookie_id == first.bookie_id
    assert only(ReadBatch, effects).bookie_id != first.bookie_id


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ((Reply.UNKNOWN, Reply.UNKNOWN, Reply.UNKNOWN), QuorumLostError),
        ((Reply.ABSENT, Reply.UNKNOWN, Reply.DAMAGED), QuorumLostError),
        ((Reply.ABSENT, Reply.DAMAGED, Reply.ABSENT), EntryDamagedError),
        ((Reply.ABSENT, Reply.ABSENT, Reply.ABSENT), NoSuchEntryError),
        ((Reply.ABSENT, Reply.UNAUTHORIZED, Reply.ABSENT), LedgerError),
    ],
)
def test_why_a_read_fails(replies: tuple[Reply, ...], error: type[Exception]) -> None:
    core = read(0, 0)
    core.start(0)
    effects = []
    for number, reply in enumerate(replies, start=1):
        effects = core.on_batch_answer(number, reply, [], 0)
    assert type(only(Failed, effects).error) is error
    assert core.is_done


def test_silence_asks_the_next_and_the_delay_doubles() -> None:
    core = read(0, 0)
    asked = [only(ReadBatch, core.start(0)).bookie_id]
    assert core.tick(99) == []
    asked.append(only(ReadBatch, core.tick(100)).bookie_id)
    assert core.tick(299) == []
    asked.append(only(ReadBatch, core.tick(300)).bookie_id)
    assert sorted(asked) == ["b1", "b2", "b3"]
    assert core.tick(10_000) == []
    assert not core.on_batch_answer(1, Reply.UNKNOWN, [], 0)
    assert some(ReadFinished, core.on_batch_answer(3, Reply.OK, [entry(0)], 0))
    assert core.on_batch_answer(2, Reply.OK, [entry(0)], 0) == []


def test_answers_to_an_earlier_read_are_not_taken_for_this_one() -> None:
    core = ReadCore(CLOSED, 0, 0, 100, BookieHealth(), requests_before=7)
    assert only(ReadBatch, core.start(0)).request == 8
    assert core.on_batch_answer(1, Reply.OK, [entry(0)], 0) == []


def test_health_orders_replicas() -> None:
    health = BookieHealth()
    names = ["a", "b", "c", "d"]
    assert health.order(names, 2, 0) == ["c", "d", "a", "b"]
    health.note_failure("c", 1_000)
    health.note_failure("a", 2_000)
    health.note_slow("d", 1_000)
    assert health.order(names, 2, 2_000) == ["b", "d", "c", "a"]
    assert health.order(names, 2, 1_000 + SLOW_MEMORY_MS) == ["d", "b", "c", "a"]
    assert health.order(names, 2, 2_000 + FAILURE_MEMORY_MS) == ["c", "d", "a", "b"]
    health.note_success("c")
    assert health.order(names, 2, 2_000)[-1] == "a"
    health.note_success("d")
    assert health.order(names, 2, 2_000) == ["c", "d", "b", "a"]


def test_what_is_remembered_of_bookies_is_bounded() -> None:
    health = BookieHealth()
    for number in range(BOOKIES_REMEMBERED_MAX + 5):  # I15
        health.note_failure(f"b{number}", 1)
    assert health.order(["b0", f"b{BOOKIES_REMEMBERED_MAX + 4}"], 1, 1) == ["b0", f"b{BOOKIES_REMEMBERED_MAX + 4}"]


def test_a_lac_read_needs_coverage() -> None:
    core = LacReadCore(ledger(more_segments=(Segment(6, ("b1", "b2", "b4")),)).record)
    assert only(ReadLac, core.start(0)).targets == ((0, "b1"), (1, "b2"), (2, "b4"))
    assert core.on_lac_answer(0, Reply.ABSENT, -1, None, 0) == []
    assert core.on_lac_answer(0, Reply.OK, 50, None, 0) == []  # counted once
    assert core.on_lac_answer(2, Reply.ABSENT, -1, None, 0) == [LacFound(5)]  # the floor
    core = LacReadCore(ledger().record)
    core.start(0)
    core.on_lac_answer(0, Reply.UNKNOWN, -1, None, 0)
    assert core.on_lac_answer(1, Reply.OK, 9, None, 0) == []
    assert isinstance(only(Failed, core.on_lac_answer(2, Reply.UNKNOWN, -1, None, 0)).error, QuorumLostError)
