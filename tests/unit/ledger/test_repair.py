"""Repair: missing entries against brute force, and the order of data and metadata."""

from __future__ import annotations

import random

import pytest

from heliograph.actors.errors import NoSuchLedgerError
from heliograph.actors.ledger.effects import (
    Effect,
    Failed,
    ListEntries,
    ReadBatch,
    ReadMetadata,
    RepairFinished,
    Reply,
    SendCopy,
    WriteMetadata,
)
from heliograph.actors.ledger.inventory import Fragment, decided_fragments, missing_runs
from heliograph.actors.ledger.limits import RepairLimits
from heliograph.actors.ledger.placement.ensemble import Replacement, merge_segments, replace_bookie, replace_from
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.repair.core import REASONS_MAX, UNREADABLE_ENTRIES_MAX, RepairCore
from heliograph.actors.ledger.schedule import WriteSchedule
from heliograph.metadata.errors import RecordError
from heliograph.metadata.model import LedgerState, Segment, Versioned
from tests.unit.ledger.cores import Spares, entry, ledger, only, some

CLOSED = ledger(state=LedgerState.CLOSED, last=9)


def runs_of(numbers: set[int]) -> list[tuple[int, int]]:
    return [(n, n) for n in sorted(numbers)]


@pytest.mark.parametrize("size", [(3, 3, 2), (4, 2, 2), (5, 3, 2), (1, 1, 1)])
def test_missing_runs_against_the_definition(size: tuple[int, int, int]) -> None:
    schedule, rng = WriteSchedule(*size), random.Random(5)
    for _ in range(100):
        first = rng.randrange(20)
        fragment = Fragment(Segment(first, tuple(f"b{n}" for n in range(size[0]))), first + rng.randrange(-1, 20))
        stored = {n for n in range(45) if rng.random() < 0.6}
        for position in range(size[0]):
            span = range(first, fragment.last_entry_id + 1)
            want = [n for n in span if position in schedule.positions(n) and n not in stored]
            runs = missing_runs(schedule, position, fragment, runs_of(stored))
            assert [n for a, b in runs for n in range(a, b + 1)] == want


def test_fragments_that_may_be_copied() -> None:
    more = (Segment(4, ("b1", "b2", "b4")), Segment(12, ("b1", "b2", "b5")))
    open_ledger = ledger(more_segments=more).record
    assert [(f.first_entry_id, f.last_entry_id) for f in decided_fragments(open_ledger)] == [(0, 3), (4, 11)]
    closed = ledger(state=LedgerState.CLOSED, last=9, more_segments=more).record
    assert [(f.first_entry_id, f.last_entry_id) for f in decided_fragments(closed)] == [(0, 3), (4, 9), (12, 9)]


class Run:
    """A repair whose bookies answer at once."""

    def __init__(self, core: RepairCore, stored: dict[str, set[int]]) -> None:
        self.core = core
        self.stored = stored
        self.finished: RepairFinished | None = None
        self.writes: list[WriteMetadata] = []
        self.damaged: dict[str, set[int]] = {}
        self.reads = 0

    def go(self, effects: list[Effect]) -> None:
        while effects:
            effects = [more for effect in effects for more in self.one(effect)]

    def one(self, effect: Effect) -> list[Effect]:
        match effect:
            case ListEntries():
                runs = tuple(runs_of(self.stored[effect.bookie_id]))
                return self.core.on_entries_listed(effect.bookie_id, Reply.OK, runs, 0)
            case ReadBatch():
                self.reads += 1
                held = self.stored.get(effect.bookie_id, set())
                held = held - self.damaged.get(effect.bookie_id, set())
                found = []
                for n in range(effect.first_entry_id, effect.last_entry_id + 1):
                    if n not in held:
                        break
                    found.append(entry(n))
                reply = Reply.OK if found else Reply.ABSENT
                return self.core.on_batch_answer(effect.request, reply, found, 0)
            case SendCopy():
                self.damaged.get(effect.bookie_id, set()).discard(effect.entry.entry_id)
                self.stored.setdefault(effect.bookie_id, set()).add(effect.entry.entry_id)
                return self.core.on_copy_answer(effect.entry.entry_id, effect.bookie_id, Reply.OK, 0)
            case WriteMetadata():
                for segment in effect.record.segments:  # I10: a bookie that the record names has the data already
                    for name in segment.bookies:
                        assert self.stored[name] >= set(range(10)), name
                self.writes.append(effect)
                return self.core.on_metadata_written(effect.request, effect.version + 1, 0)
            case RepairFinished():
                self.finished = effect
        return []


def test_a_dead_bookie_is_replaced_after_its_data_moved() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth(), RepairLimits(4, 1 << 20))
    run = Run(core, {"b1": set(full), "b3": set(full)})
    run.go(core.start(0))
    assert run.finished == RepairFinished(True, 10, 10)
    assert [w.record.segments[0].bookies for w in run.writes] == [("b1", "b4", "b3")]


def test_holes_are_filled_before_a_dead_bookie_is_replaced() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth())
    run = Run(core, {"b1": full - {3, 4, 8}, "b3": full - {5}})
    run.go(core.start(0))
    assert run.finished == RepairFinished(True, 14, 14)
    assert run.stored["b1"] == run.stored["b3"] == full


def test_a_missing_bookie_that_is_alive_stays() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, ["b2"], ["b1", "b2", "b3", "b4"], Spares("b4"), BookieHealth())
    run = Run(core, {"b1": set(full), "b2": {1, 2}, "b3": set(full)})
    run.go(core.start(0))
    assert run.finished == RepairFinished(True, 8, 8)
    assert run.writes == []


def test_a_reported_bookie_that_lacks_nothing_is_read_through() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, ["b2"], ["b1", "b2", "b3"], Spares(), BookieHealth())
    run = Run(core, {"b1": set(full), "b2": set(full), "b3": set(full)})
    run.damaged["b2"] = {0, 6, 9}
    run.go(core.start(0))
    assert run.finished == RepairFinished(True, 3, 3)
    assert run.damaged["b2"] == set()


def test_damaged_copies_are_written_again_although_others_are_missing() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, ["b2"], ["b1", "b2", "b3"], Spares(), BookieHealth(), damaged=["b2"])
    run = Run(core, {"b1": set(full), "b2": full - {2, 3}, "b3": set(full)})
    run.damaged["b2"] = {0, 6, 9}
    run.go(core.start(0))
    assert run.finished == RepairFinished(True, 5, 5)
    assert run.damaged["b2"] == set()
    assert run.stored["b2"] == full


def test_a_damaged_copy_without_a_good_one_stays_and_is_counted() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, ["b2"], ["b1", "b2", "b3"], Spares(), BookieHealth(), damaged=["b2"])
    run = Run(core, {"b1": set(full), "b2": set(full), "b3": set(full)})
    run.damaged = {"b1": {6}, "b2": {0, 6}, "b3": {6}}
    run.go(core.start(0))
    assert run.finished is not None
    assert not run.finished.complete
    assert (run.finished.copied_entries, run.finished.lost_entries) == (1, 1)
    assert run.damaged == {"b1": {6}, "b2": {6}, "b3": {6}}


def test_a_repair_keeps_to_its_rate() -> None:
    limits = RepairLimits(in_flight_entries_max=8, bytes_per_second=2)
    core = RepairCore(CLOSED, ["b2"], ["b1", "b2", "b3"], Spares(), BookieHealth(), limits)
    core.start(0)
    core.on_entries_listed("b1", Reply.OK, ((0, 9),), 0)
    core.on_entries_listed("b3", Reply.OK, ((0, 9),), 0)
    (batch,) = some(ReadBatch, core.on_entries_listed("b2", Reply.ABSENT, (), 0))
    effects = core.on_batch_answer(batch.request, Reply.OK, [entry(n) for n in range(4)], 0)
    assert len(some(SendCopy, effects)) == 4
    assert not some(ReadBatch, effects)
    assert not some(ReadBatch, core.tick(1_999))
    assert only(ReadBatch, core.tick(2_000)).first_entry_id == 4


def test_a_reported_bookie_that_answers_nothing_is_left_for_another_time() -> None:
    core = RepairCore(CLOSED, ["b2"], ["b1", "b2", "b3"], Spares(), BookieHealth())
    core.start(0)
    effects: list[Effect] = []
    for name in ("b1", "b2", "b3"):
        effects = core.on_entries_listed(name, Reply.OK, ((0, 9),), 0)
    for _ in range(4):
        effects = core.on_batch_answer(only(ReadBatch, effects).request, Reply.UNKNOWN, [], 0)
    assert "cannot be verified" in only(RepairFinished, effects).reason


def test_an_entry_without_a_copy_is_named() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth())
    run = Run(core, {"b1": full - {7}, "b3": full - {7}})
    run.go(core.start(0))
    assert run.finished is not None
    assert not run.finished.complete
    assert "entry 7" in run.finished.reason
    assert run.writes == []  # I10


def test_an_entry_without_a_copy_holds_up_no_other() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, [], ["b1", "b2", "b3"], Spares(), BookieHealth())
    run = Run(core, {"b1": full - {2, 3}, "b2": full - {2, 3, 5, 8}, "b3": full - {2, 3, 9}})
    run.go(core.start(0))
    assert run.finished is not None
    assert not run.finished.complete
    assert run.finished.copied_entries == 3
    assert all(run.stored[name] == full - {2, 3} for name in ("b1", "b2", "b3"))


def test_entries_without_a_copy_are_passed_over_up_to_a_bound() -> None:
    record = ledger(state=LedgerState.CLOSED, last=999)
    core = RepairCore(record, [], ["b1", "b2", "b3"], Spares(), BookieHealth())
    run = Run(core, {name: set() for name in ("b1", "b2", "b3")})
    run.go(core.start(0))
    assert run.finished is not None
    assert not run.finished.complete
    assert run.reads <= 3 * (UNREADABLE_ENTRIES_MAX + 3)  # I15
    assert run.finished.reason.count(";") < REASONS_MAX


def test_a_source_that_does_not_answer_ends_the_step() -> None:
    """Entries are skipped if they are lost, but not if no bookie answers: each would cost a timeout."""
    core = RepairCore(CLOSED, [], ["b1", "b2", "b3"], Spares(), BookieHealth())
    effects = core.start(0)
    for name, runs in (("b1", ((0, 9),)), ("b2", ()), ("b3", ((0, 9),))):
        effects = core.on_entries_listed(name, Reply.OK, runs, 0)
    for _ in range(3):
        effects = core.on_batch_answer(only(ReadBatch, effects).request, Reply.UNKNOWN, [], 0)
    assert "could serve entry 0" in only(RepairFinished, effects).reason


def test_no_bookie_to_move_to() -> None:
    full = set(range(10))
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3"], Spares(), BookieHealth())
    run = Run(core, {"b1": set(full), "b3": set(full)})
    run.go(core.start(0))
    assert run.finished is not None
    assert "no bookie can replace b2" in run.finished.reason


def test_a_bookie_is_emptied_though_it_lives() -> None:
    full = set(range(10))
    alive = ["b1", "b2", "b3", "b4"]
    core = RepairCore(CLOSED, [], alive, Spares("b4"), BookieHealth(), RepairLimits(4, 1 << 20), away_from=["b2"])
    run = Run(core, {"b2": set(full)})  # it is the only source
    run.stored |= {"b1": {0, 1}, "b3": set()}
    run.go(core.start(0))
    assert run.finished == RepairFinished(True, 28, 28)
    assert [w.record.segments[0].bookies for w in run.writes] == [("b1", "b4", "b3")]  # I10


def test_a_bookie_to_be_emptied_takes_no_place() -> None:
    full = set(range(10))
    alive = ["b1", "b2", "b3", "b4"]
    core = RepairCore(CLOSED, [], alive, Spares("b4"), BookieHealth(), away_from=["b2", "b4"])
    run = Run(core, {"b1": set(full), "b2": set(full), "b3": set(full)})
    run.go(core.start(0))
    assert run.finished is not None
    assert "no bookie can replace b2" in run.finished.reason
    assert run.writes == []


def test_a_bookie_to_be_emptied_stays_in_an_open_last_segment() -> None:
    core = RepairCore(ledger(), [], ["b1", "b2", "b3", "b4"], Spares("b4"), BookieHealth(), away_from=["b2"])
    assert "recover the ledger first" in only(RepairFinished, core.start(0)).reason


class Copying:
    """A repair that replaces b2. The test answers its copies."""

    def __init__(self, limits: RepairLimits) -> None:
        self.core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth(), limits)
        self.core.start(0)
        self.core.on_entries_listed("b1", Reply.OK, ((0, 9),), 0)
        self.effects = self.core.on_entries_listed("b3", Reply.OK, ((0, 9),), 0)
        self.sent: list[int] = []

    def read(self) -> ReadBatch:
        """Answer the read under way. Its effects are in ``effects``."""
        asked = only(ReadBatch, self.effects)
        found = [entry(n) for n in range(asked.first_entry_id, asked.last_entry_id + 1)]
        self.effects = self.core.on_batch_answer(asked.request, Reply.OK, found, 0)
        self.sent += [copy.entry.entry_id for copy in some(SendCopy, self.effects)]
        return asked

    def copied(self, entry_id: int, reply: Reply = Reply.OK) -> None:
        self.effects = self.core.on_copy_answer(entry_id, "b4", reply, 0)


def test_copies_are_read_while_others_are_written() -> None:
    run = Copying(RepairLimits(in_flight_entries_max=4, in_flight_bytes_max=1 << 20))
    run.read()
    assert run.sent == [0, 1]
    run.read()  # requested before anything was written
    assert run.sent == [0, 1, 2, 3]
    assert run.effects == [e for e in run.effects if isinstance(e, SendCopy)]  # I15: the window is full
    run.copied(0)
    assert run.effects == []
    run.copied(2)
    run.read()
    for n in (1, 3):
        run.copied(n)
    run.read()
    assert run.sent == list(range(8))
    for n in (4, 5):
        run.copied(n)
    run.read()
    for n in (6, 7, 8, 9):
        assert not some(WriteMetadata, run.effects)  # I10: not before the last copy is durable
        run.copied(n)
    assert len(some(WriteMetadata, run.effects)) == 1


def test_the_window_bounds_the_bytes_of_copies_under_way() -> None:
    run = Copying(RepairLimits(in_flight_entries_max=100, in_flight_bytes_max=8))
    assert only(ReadBatch, run.effects).max_bytes == 4
    run.read()
    assert run.sent == list(range(4))
    run.read()
    assert run.sent == list(range(8))
    assert not some(ReadBatch, run.effects)  # I15: 8 bytes are under way
    for n in range(4):
        run.copied(n)
    assert some(ReadBatch, run.effects)


def test_a_window_of_one_copy() -> None:
    run = Copying(RepairLimits(in_flight_entries_max=1, in_flight_bytes_max=1))
    for n in range(10):
        run.read()
        assert run.sent == list(range(n + 1))
        run.copied(n)
    assert len(some(WriteMetadata, run.effects)) == 1


def test_a_refused_copy_ends_the_move_after_the_others_were_answered() -> None:
    run = Copying(RepairLimits(in_flight_entries_max=4, in_flight_bytes_max=1 << 20))
    run.read()
    late = only(ReadBatch, run.effects)
    run.copied(0, Reply.READ_ONLY)
    assert run.effects == []
    assert run.core.on_batch_answer(late.request, Reply.OK, [entry(2), entry(3)], 0) == []  # dropped
    run.copied(1)
    finished = only(RepairFinished, run.effects)
    assert "did not take its copies" in finished.reason
    assert finished.copied_entries == 1
    assert not some(WriteMetadata, run.effects)  # I10


def test_answers_that_come_twice_or_late_count_for_nothing() -> None:
    run = Copying(RepairLimits(in_flight_entries_max=4, in_flight_bytes_max=1 << 20))
    assert run.core.on_entries_listed("b1", Reply.OK, (), 0) == []
    run.read()
    run.read()
    for _ in range(4):
        run.copied(0)
    assert not some(ReadBatch, run.effects)  # the window has room for one copy, not four
    assert run.core.on_copy_answer(1, "b1", Reply.OK, 0) == []
    run.copied(1)
    assert run.core.on_batch_answer(1, Reply.OK, [entry(0), entry(1)], 0) == []  # of the first read
    run.read()
    assert run.sent == list(range(6))


def test_a_bookie_that_refuses_copies_is_told_to_the_chooser() -> None:
    spares = Spares("b4")
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], spares, BookieHealth())
    run = Run(core, {"b1": set(range(10)), "b3": set(range(10))})
    effects = core.start(0)
    while not some(SendCopy, effects):
        effects = [more for effect in effects for more in run.one(effect)]
    for copy in some(SendCopy, effects):
        core.on_copy_answer(copy.entry.entry_id, "b4", Reply.READ_ONLY, 0)
    assert spares.failures == ["b4"]
    assert core.is_done


def test_a_silent_source_is_passed_over_after_a_while() -> None:
    run = Copying(RepairLimits())
    asked = only(ReadBatch, run.effects)
    assert run.core.tick(499) == []
    other = only(ReadBatch, run.core.tick(500))
    assert other.bookie_id != asked.bookie_id


def test_a_ledger_that_was_deleted_meanwhile() -> None:
    run = Copying(RepairLimits())
    run.read()
    for n in range(10):
        run.copied(n)
    write = only(WriteMetadata, run.effects)
    assert isinstance(only(Failed, run.core.on_metadata_missing(write.request, 0)).error, NoSuchLedgerError)
    assert run.core.is_done


def run_to_conflict(core: RepairCore) -> ReadMetadata:
    """Run a repair up to the re-read of the record after a conflict."""
    run = Run(core, {"b1": set(range(10)), "b3": set(range(10))})
    effects = core.start(0)
    for _ in range(20):
        if some(WriteMetadata, effects):
            break
        effects = [more for effect in effects for more in run.one(effect)]
    return only(ReadMetadata, core.on_metadata_conflict(only(WriteMetadata, effects).request, 0))


def test_a_place_that_changed_hands_meanwhile_is_left_alone() -> None:
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth())
    read = run_to_conflict(core)
    moved = replace_bookie(CLOSED.record, 0, 1, "b2", "b9")
    assert moved is not None
    assert only(RepairFinished, core.on_metadata_read(read.request, Versioned(moved, 4), 0)).complete  # I9
    other = replace_bookie(CLOSED.record, 0, 0, "b1", "b4")
    assert other is not None
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth())
    read = run_to_conflict(core)
    finished = only(RepairFinished, core.on_metadata_read(read.request, Versioned(other, 4), 0))
    assert not finished.complete  # b4 is in that segment now, and b2 still is


def test_a_record_that_cannot_be_read_ends_the_repair() -> None:
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth())
    read = run_to_conflict(core)
    error = RecordError("written by a newer version: upgrade")
    assert only(Failed, core.on_metadata_refused(read.request, error, 0)).error is error
    assert core.is_done


def test_segment_changes_are_pure_and_exact() -> None:
    record = ledger().record
    change = {1: Replacement("b2", "b4")}
    appended = replace_from(record, 5, change)
    assert appended is not None
    assert appended.segments == (record.segments[0], Segment(5, ("b1", "b4", "b3")))  # I8
    in_place = replace_from(record, 0, change)
    assert in_place is not None
    assert in_place.segments == (Segment(0, ("b1", "b4", "b3")),)
    assert replace_from(in_place, 0, change) is None  # I9: it is done already
    with pytest.raises(AssertionError):
        replace_from(appended, 4, {0: Replacement("b1", "b5")})  # I8: below a past LAC + 1
    assert replace_bookie(appended, 0, 1, "b2", "b5") is not None
    assert replace_bookie(appended, 0, 1, "b9", "b5") is None
    assert replace_bookie(appended, 0, 1, "b2", "b3") is None  # it is in that segment already
    merged = merge_segments(appended, {5: ("b1", "b6", "b3"), 8: ("b1", "b7", "b3")})
    assert [s.first_entry_id for s in merged] == [0, 5, 8]
    assert merged[1].bookies == ("b1", "b6", "b3")
    with pytest.raises(AssertionError):
        merge_segments(appended, {3: ("b1", "b6", "b3")})
