"""Write sets and quorum rules, for every E, Qw, Qa up to 6 and every subset of responders, by brute force."""

from __future__ import annotations

from itertools import combinations

import pytest

from heliograph.actors.ledger.effects import LedgerEntry, Reply
from heliograph.actors.ledger.schedule import WriteSchedule, mask_of, positions_of
from heliograph.actors.ledger.verdict import EntryVerdict, LacQuorum, Verdict
from heliograph.base.errors import InvalidQuorumError

SIZES = [(e, w, a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)]


def ack_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> set[int]:
    """Return every set of positions on which an entry may be confirmed, by the definition."""
    found = set()
    for entry_id in range(ensemble_size):
        write_set = [(entry_id + i) % ensemble_size for i in range(write_quorum)]
        found |= {mask_of(chosen) for chosen in combinations(write_set, ack_quorum)}
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_coverage_is_meeting_every_ack_quorum(size: tuple[int, int, int]) -> None:
    # I5 I7: a fence counts when no ack quorum is left without a fenced bookie.
    schedule = WriteSchedule(*size)
    quorums = ack_quorums(*size)
    for usable in range(1 << size[0]):
        assert schedule.covers(usable) == all(quorum & usable for quorum in quorums), f"{usable:b}"


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_lac_quorum_counts_every_usable_answer(size: tuple[int, int, int]) -> None:
    schedule = WriteSchedule(*size)
    for usable in range(1 << size[0]):
        lacs = LacQuorum(schedule)
        for position in range(size[0]):
            heard = usable >> position & 1
            reply = (Reply.OK, Reply.ABSENT, Reply.DAMAGED)[position % 3] if heard else Reply.UNKNOWN
            lacs.on_answer(position, reply, position if heard else 99, None)
        assert lacs.is_exhausted
        assert lacs.is_covered == schedule.covers(usable)
        assert lacs.last_add_confirmed == max(positions_of(usable), default=-1)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_broken_agrees_with_the_definition(size: tuple[int, int, int]) -> None:
    ensemble_size, _, ack_quorum = size
    schedule = WriteSchedule(*size)
    for entry_id in range(ensemble_size):
        write_set = schedule.positions(entry_id)
        for failed in range(1 << ensemble_size):
            left = [p for p in write_set if not failed >> p & 1]
            assert schedule.is_broken(entry_id, failed) == (len(left) < ack_quorum)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_verdict_absent_leaves_no_room_for_an_ack_quorum(size: tuple[int, int, int]) -> None:
    # I7: absent exactly when the bookies that did not say "absent" are too few for an ack quorum.
    ensemble_size, write_quorum, ack_quorum = size
    schedule = WriteSchedule(*size)
    for entry_id in range(ensemble_size):
        write_set = schedule.positions(entry_id)
        for negatives in range(1 << write_quorum):
            verdict = EntryVerdict(schedule, entry_id)
            for i, position in enumerate(write_set):
                verdict.on_answer(position, Reply.ABSENT if negatives >> i & 1 else Reply.UNKNOWN, None)
            others = write_quorum - negatives.bit_count()
            assert verdict.verdict is (Verdict.ABSENT if others < ack_quorum else Verdict.UNKNOWN)


def test_answers_that_come_twice_and_late_prove_nothing_new() -> None:
    # I7: two "absent" of one bookie are one; neither is one of a bookie that the entry is not striped to.
    verdict, entry = EntryVerdict(WriteSchedule(4, 3, 2), 0), LedgerEntry(0, b"x", 1)

    def hear(position: int, reply: Reply) -> Verdict:
        verdict.on_answer(position, reply, entry if reply is Reply.OK else None)
        return verdict.verdict

    assert {hear(position, Reply.ABSENT) for position in (0, 0, 3)} == {Verdict.PENDING}
    assert hear(0, Reply.OK) is Verdict.PENDING  # it has said "absent" before
    assert hear(1, Reply.ABSENT) is Verdict.ABSENT
    assert hear(2, Reply.OK) is Verdict.ABSENT  # as decided


def test_a_whole_entry_comes_with_a_lac_answer_only_if_it_is_whole() -> None:
    lacs = LacQuorum(WriteSchedule(3, 3, 2))
    entry = LedgerEntry(4, b"x", 5, 3)
    lacs.on_answer(0, Reply.DAMAGED, 3, entry)
    assert (lacs.entries, lacs.last_add_confirmed, lacs.is_covered) == ({}, 3, False)
    lacs.on_answer(1, Reply.OK, 3, entry)
    assert (lacs.entries, lacs.is_covered) == ({4: entry}, True)


@pytest.mark.parametrize("base", [0, 2**31 - 4, 2**31, 2**32 + 5, 2**62])
def test_striping_is_the_same_at_any_id(base: int) -> None:
    for size in SIZES:
        schedule = WriteSchedule(*size)
        for entry_id in range(base, base + 8):
            assert schedule.positions(entry_id) == tuple((entry_id + i) % size[0] for i in range(size[1]))
            assert schedule.mask(entry_id) == mask_of(schedule.positions(entry_id))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_runs_and_entries_of_a_position(size: tuple[int, int, int]) -> None:
    schedule = WriteSchedule(*size)
    for position in range(size[0]):
        mine = [n for n in range(30) if position in schedule.positions(n)]
        assert list(schedule.entries_at(position, 0, 29)) == mine
        for first in mine:
            last = schedule.last_of_run(position, first, 29)
            assert all(n in mine for n in range(first, last + 1))
            assert last == 29 or last + 1 not in mine


@pytest.mark.parametrize("numbers", [(3, 4, 2), (3, 2, 3), (2, 2, 0), (0, 0, 0)])
def test_numbers_that_make_no_sense_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidQuorumError):
        WriteSchedule(*numbers)
