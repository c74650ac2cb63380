"""Decisions on lost bookies, and on the order of repairs."""

from heliograph.actors.auditor.checks import Absences, Finding, Risks, finding, ledgers_on, named_bookies
from heliograph.actors.auditor.placements.index import placement_of
from heliograph.actors.auditor.plan import TaskMark, marks, must_be_fenced, places_to_fill, retry_pause_ms
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment


def ledger(
    ledger_id: int, *segments: tuple[int, str], state: LedgerState = LedgerState.CLOSED, last: int = 99
) -> LedgerMetadata:
    """Return a ledger with E=Qw=3, Qa=2 and segments from ``(first entry, "a b c")``."""
    parts = tuple(Segment(first, tuple(bookies.split())) for first, bookies in segments)
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(ledger_id, 3, 3, 2, parts, state=state, last_entry_id=last if closed else -1)


def test_a_bookie_is_lost_only_after_the_delay() -> None:
    absences = Absences(delay_ms=100)
    assert absences.observe(0, {"a", "b"}, {"b"}) == frozenset()
    assert absences.next_due_ms(0) == 100
    assert absences.observe(99, {"a", "b"}, {"b"}) == frozenset()
    assert absences.observe(100, {"a", "b"}, {"b"}) == {"a"}
    assert absences.next_due_ms(100) is None


def test_a_bookie_that_returns_starts_over() -> None:
    absences = Absences(delay_ms=100)
    absences.observe(0, {"a"}, set())
    absences.observe(50, {"a"}, {"a"})
    assert absences.observe(120, {"a"}, set()) == frozenset()
    assert absences.absent == {"a": 120}
    assert absences.observe(220, {"a"}, set()) == {"a"}


def test_without_delay_a_bookie_is_lost_at_once_and_unneeded_ones_do_not_count() -> None:
    absences = Absences(delay_ms=0)
    assert absences.observe(5, {"a"}, {"b"}) == {"a"}
    assert absences.observe(6, set(), set()) == frozenset()


def test_findings_name_only_segments_that_hold_entries() -> None:
    moved = ledger(1, (0, "a b c"), (50, "a b d"))
    beyond = ledger(2, (0, "a b c"), (100, "x y z"), last=99)
    open_ledger = ledger(3, (0, "x b c"), state=LedgerState.OPEN)
    empty = ledger(4, (0, "x y z"), last=-1)
    assert named_bookies(moved) | named_bookies(beyond) == {"a", "b", "c", "d", "x", "y", "z"}
    found = ledgers_on(map(placement_of, [moved, beyond, open_ledger, empty]), {"c", "x"})
    assert [(one.ledger_id, one.missing_bookies) for one in found] == [(1, ("c",)), (2, ("c",)), (3, ("c", "x"))]
    assert [one.copies_left for one in found] == [2, 2, 1]
    assert [one.is_closed for one in found] == [True, True, False]


def test_copies_left_is_of_the_worst_write_set() -> None:
    segments = (Segment(0, ("a", "b", "c", "d")),)
    striped = placement_of(LedgerMetadata(7, 4, 2, 2, segments, state=LedgerState.CLOSED, last_entry_id=9))
    assert finding(striped, {"a", "c"}).copies_left == 1
    assert finding(striped, {"a", "b"}).copies_left == 0
    assert finding(striped, set()).copies_left == 2


def test_a_machine_is_a_risk_for_the_ledgers_that_it_stops() -> None:
    hosts = {"a": "m1", "b": "m1", "c": "m2", "d": "m3"}
    risks = Risks(hosts)

    def add(*ledgers: LedgerMetadata) -> None:
        risks.add(map(placement_of, ledgers))

    all_on_one = LedgerMetadata(1, 2, 2, 2, (Segment(0, ("a", "b")),), state=LedgerState.CLOSED, last_entry_id=9)
    two_on_one = ledger(2, (0, "a b c"))
    add(all_on_one, two_on_one, two_on_one)
    assert risks.counts == {"m1": 1}, "a closed ledger can be read from its last copy"
    add(ledger(3, (0, "a b c"), state=LedgerState.OPEN))
    assert risks.counts == {"m1": 2}, "an open one cannot be recovered from one of three"
    add(ledger(4, (0, "a c d"), state=LedgerState.OPEN))
    assert risks.counts == {"m1": 2}
    add(ledger(5, (0, "a c gone"), state=LedgerState.OPEN))
    assert risks.counts == {"m1": 3, "m2": 1}, "one bookie is absent already"
    add(ledger(6, (0, "x y z"), state=LedgerState.OPEN))
    assert risks.counts == {"m1": 3, "m2": 1}, "it has stopped already"
    add(ledger(7, (0, "a c d"), (100, "a b c"), last=99))
    assert risks.counts == {"m1": 3, "m2": 1}, "a segment without entries counts for nothing"
    risks.add([placement_of(all_on_one)], -1)
    assert risks.counts == {"m1": 2, "m2": 1}


def test_marks_come_most_urgent_first_and_stop_at_the_bound() -> None:
    findings = [
        Finding(1, ("a",), copies_left=2, is_closed=True),
        Finding(2, ("a",), copies_left=1, is_closed=False),
        Finding(3, ("a",), copies_left=1, is_closed=True),
        Finding(4, ("a",), copies_left=0, is_closed=True),
    ]
    assert [mark.ledger_id for mark in marks(findings, {}, 10)] == [3, 2, 1, 4]
    assert [mark.ledger_id for mark in marks(findings, {}, 2)] == [3, 2]
    assert [mark.ledger_id for mark in marks(findings, {9: frozenset("z")}, 2)] == [3]
    assert [mark.ledger_id for mark in marks(findings[3:], {}, 2)] == [4]
    assert marks(findings[3:], {9: frozenset("z")}, 2) == [], "half of the room is for those that can be repaired"
    assert marks(findings, {8: frozenset("z"), 9: frozenset("z")}, 2) == []


def test_marks_skip_what_is_known_and_merge_what_is_new() -> None:
    findings = [Finding(1, ("a",), 2, True), Finding(2, ("a", "b"), 1, True)]
    outstanding = {1: frozenset(("a", "z")), 2: frozenset("a")}
    assert marks(findings, outstanding, tasks_max=2) == [TaskMark(2, ("a", "b"))]


def test_only_a_lost_bookie_of_the_last_segment_of_an_unclosed_ledger_calls_for_fencing() -> None:
    open_ledger = ledger(1, (0, "a b c"), (5, "a b d"), state=LedgerState.OPEN)
    assert places_to_fill(open_ledger, {"d"}) == [2]
    assert places_to_fill(open_ledger, {"c"}) == []
    assert places_to_fill(open_ledger, set()) == []
    assert places_to_fill(ledger(1, (0, "a b c"), state=LedgerState.IN_RECOVERY), {"a"}) == [0]
    assert places_to_fill(ledger(1, (0, "a b ~vacant-2"), state=LedgerState.OPEN), ()) == [2]
    assert places_to_fill(ledger(1, (0, "a b c")), {"a"}) == []
    assert must_be_fenced([2], can_be_filled=True)
    assert not must_be_fenced([2], can_be_filled=False)  # I20
    assert not must_be_fenced([], can_be_filled=True)


def test_retry_pauses_double_up_to_a_ceiling() -> None:
    assert [retry_pause_ms(n, 100, 1000) for n in (1, 2, 3, 4, 5, 500)] == [100, 200, 400, 800, 1000, 1000]
