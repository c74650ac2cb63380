"""What a read records about bookies, and that it ends once."""

from __future__ import annotations

import pytest

from heliograph.actors.ledger.effects import Effect, Failed, ReadBatch, ReadFinished, Reply
from heliograph.actors.ledger.limits import ReaderLimits
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.reader import ReadCore
from heliograph.metadata.model import LedgerState
from tests.unit.ledger.cores import entry, ledger, only, some

LIMITS = ReaderLimits(speculative_ms=100)
CLOSED = ledger(state=LedgerState.CLOSED, last=99).record


class Meeting:
    """One read of entry 0, and the order of bookies for the next one."""

    def __init__(self) -> None:
        self.health = BookieHealth()
        self.core = ReadCore(CLOSED, 0, 0, 100, self.health, LIMITS)
        self.first = only(ReadBatch, self.core.start(0))

    def order(self) -> list[str]:
        return self.health.order(["b1", "b2", "b3"], CLOSED.ledger_id, 1_000)


@pytest.mark.parametrize("reply", [Reply.UNKNOWN, Reply.UNAUTHORIZED])
def test_a_bookie_that_fails_is_asked_last(reply: Reply) -> None:
    met = Meeting()
    assert met.order()[0] == met.first.bookie_id
    met.core.on_batch_answer(met.first.request, reply, [], 0)
    assert met.order()[-1] == met.first.bookie_id


@pytest.mark.parametrize("reply", [Reply.ABSENT, Reply.DAMAGED])
def test_a_bookie_with_a_bad_copy_keeps_its_place(reply: Reply) -> None:
    met = Meeting()
    met.core.on_batch_answer(met.first.request, reply, [], 0)
    assert met.order()[0] == met.first.bookie_id


def test_a_silent_bookie_is_asked_later_until_it_answers() -> None:
    met = Meeting()
    second = only(ReadBatch, met.core.tick(LIMITS.speculative_ms))
    assert met.order()[-1] == met.first.bookie_id
    assert some(ReadFinished, met.core.on_batch_answer(second.request, Reply.OK, [entry(0)], 150))
    again = ReadCore(CLOSED, 0, 0, 100, met.health, LIMITS)
    assert only(ReadBatch, again.start(200)).bookie_id == second.bookie_id


def test_a_read_ends_once() -> None:
    record = ledger("b1 b2 b3 b4", write_quorum=2, state=LedgerState.CLOSED, last=99).record
    core = ReadCore(record, 0, 3, 100, BookieHealth(), LIMITS)
    first, *others = some(ReadBatch, core.start(0))
    assert others, "a striped ledger is read in several runs"
    ends: list[Effect] = []
    waiting = [first, *others]
    while waiting:
        request = waiting.pop(0)
        effects = core.on_batch_answer(request.request, Reply.UNKNOWN, [], 0)
        waiting += some(ReadBatch, effects)
        ends += some(Failed, effects)
    assert len(ends) == 1
    assert core.is_done


def test_runs_under_way_are_bounded() -> None:
    record = ledger("b1 b2 b3 b4", write_quorum=2, state=LedgerState.CLOSED, last=99).record
    core = ReadCore(record, 0, 99, 100, BookieHealth(), ReaderLimits(runs_max=3))
    assert len(some(ReadBatch, core.start(0))) == 3  # I15


def test_nearby_bookies_are_asked_first_unless_they_fail() -> None:
    health = BookieHealth(nearby=[["b2", "elsewhere"]])
    for spread in range(3):
        assert health.order(["b1", "b2", "b3"], spread, 0)[0] == "b2"
    assert {health.order(["b1", "b2", "b3"], spread, 0)[1] for spread in range(3)} == {"b1", "b3"}
    health.note_slow("b2", 0)
    assert health.order(["b1", "b2", "b3"], 0, 0)[-1] == "b2"
    health.note_failure("b1", 0)
    health.note_failure("b2", 0)
    assert health.order(["b1", "b2", "b3"], 0, 0) == ["b3", "b2", "b1"]


def test_the_own_machine_comes_before_its_rack_and_that_before_others() -> None:
    health = BookieHealth(nearby=[["b3"], ["b2", "b3"]])
    for spread in range(3):
        assert health.order(["b1", "b2", "b3"], spread, 0) == ["b3", "b2", "b1"]
    health.note_slow("b2", 0)
    assert health.order(["b1", "b2", "b3"], 0, 0) == ["b3", "b1", "b2"]
