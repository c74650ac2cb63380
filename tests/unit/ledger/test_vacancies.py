"""Ledgers that are created while bookies are missing: their ensembles, writers, reads and records (I20)."""

from __future__ import annotations

import itertools
import random

import pytest

from heliograph.actors.errors import NotEnoughBookiesError, QuorumLostError
from heliograph.actors.ledger.effects import Reply, WriterFailed
from heliograph.actors.ledger.inventory import CheckCore
from heliograph.actors.ledger.limits import ReaderLimits, WriterLimits
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.placement.placement import RackAwarePlacement, RandomPlacement
from heliograph.actors.ledger.reader import ReadCore
from heliograph.actors.ledger.schedule import WriteSchedule, is_vacancy, vacancies_of
from heliograph.actors.ledger.verdict import EntryVerdict, LacQuorum, Verdict
from heliograph.actors.ledger.writer import WriterCore
from heliograph.metadata.codec import decode, encode
from heliograph.metadata.errors import RecordError
from heliograph.metadata.model import BookieRegistration, LedgerMetadata, LedgerState
from tests.unit.ledger.cores import Spares, ledger, only, some


def chooser(count: int) -> BookieChooser:
    made = BookieChooser(RandomPlacement(), random.Random(1))
    made.set_writable(BookieRegistration(f"b{n}", "h:1") for n in range(count))
    return made


@pytest.mark.parametrize(
    ("usable", "size", "write_quorum", "least", "members", "vacancies"),
    [
        (3, 3, 3, 2, 3, 0),
        (2, 3, 3, 2, 2, 1),
        (4, 5, 3, 2, 4, 0),  # a narrower ensemble is enough
        (3, 5, 3, 2, 3, 0),
        (2, 5, 3, 2, 2, 1),
        (3, 5, 5, 3, 3, 2),
        (2, 3, 2, 2, 2, 0),
        (1, 3, 2, 1, 1, 1),
    ],
)
def test_an_ensemble_has_vacancies_only_where_bookies_are_missing(
    usable: int, size: int, write_quorum: int, least: int, members: int, vacancies: int
) -> None:
    ensemble = chooser(usable).choose_ensemble(size, write_quorum, 0, least=least)
    assert len({name for name in ensemble if not is_vacancy(name)}) == members
    assert sum(map(is_vacancy, ensemble)) == vacancies
    assert len(ensemble) >= write_quorum


def test_below_the_least_number_of_bookies_there_is_no_ensemble() -> None:
    with pytest.raises(NotEnoughBookiesError):
        chooser(1).choose_ensemble(3, 3, 0, least=2)
    with pytest.raises(NotEnoughBookiesError):
        chooser(2).choose_ensemble(3, 3, 0, least=3)


def test_a_policy_that_requires_racks_keeps_to_it_in_a_smaller_ensemble() -> None:
    made = BookieChooser(RackAwarePlacement(racks_min=2), random.Random(1))
    made.set_writable(BookieRegistration(f"b{n}", "h:1", rack="r") for n in range(2))
    with pytest.raises(NotEnoughBookiesError, match="racks"):
        made.choose_ensemble(3, 3, 0, least=2)


@pytest.mark.parametrize(("ensemble", "write", "ack"), [(3, 3, 2), (5, 5, 3), (2, 2, 1), (4, 4, 2)])
def test_whatever_answers_come_a_vacancy_hides_no_confirmed_entry(ensemble: int, write: int, ack: int) -> None:
    """Try all placements of vacancies, of copies and of answers: an entry on an ack quorum is never called absent, and
    what a recovery has fenced leaves no ack quorum free (I7)."""
    schedule = WriteSchedule(ensemble, write, ack)
    for vacant in range(schedule.full_mask + 1):
        if not vacant.bit_count() <= write - ack:
            continue
        members = [p for p in range(ensemble) if not vacant >> p & 1]
        for holders in itertools.product((False, True), repeat=len(members)):
            verdict, lacs = EntryVerdict(schedule, 0, vacant), LacQuorum(schedule, vacant)
            fenced = 0
            for position, has_copy in zip(members, holders, strict=True):
                if lacs.is_covered:
                    break
                lacs.on_answer(position, Reply.ABSENT, -1, None)
                verdict.on_answer(position, Reply.UNKNOWN if has_copy else Reply.ABSENT, None)
                fenced |= 1 << position
            if lacs.is_covered:
                free = [p for p in members if not fenced >> p & 1]
                assert len(free) < ack, "an entry could still be confirmed"
            if sum(holders) >= ack:
                assert verdict.verdict is not Verdict.ABSENT


def test_a_record_with_too_many_vacancies_is_refused() -> None:
    good = ledger("b1 b2 ~vacant-2").record
    assert decode(LedgerMetadata, encode(good)) == good
    text = encode(good).partition(b"\n")[2].replace(b"b2", b"~vacant-1")
    with pytest.raises(AssertionError, match="Qa bookies"):
        ledger("b1 ~vacant-1 ~vacant-2")
    import crc32c

    with pytest.raises(RecordError, match="Qa bookies"):
        decode(LedgerMetadata, b"heliograph LedgerMetadata v1 %08x\n%s" % (crc32c.crc32c(text), text))


def test_reads_go_to_bookies_only() -> None:
    record = ledger("b1 b2 ~vacant-2", state=LedgerState.CLOSED, last=5).record
    core = ReadCore(record, 0, 5, 1 << 20, BookieHealth(), ReaderLimits())
    asked = []
    effects = core.start(0)
    while effects and hasattr(effects[0], "bookie_id"):
        asked.append(effects[0].bookie_id)
        effects = core.on_batch_answer(effects[0].request, Reply.UNKNOWN, [], 0)  # type: ignore[union-attr]
    assert sorted(asked) == ["b1", "b2"]


def test_a_check_finds_every_entry_missing_at_a_vacancy() -> None:
    core = CheckCore(ledger("b1 b2 ~vacant-2", state=LedgerState.CLOSED, last=4).record)
    assert len(core.start(0)) == 2
    core.on_entries_listed("b1", Reply.OK, ((0, 4),), 0)
    (finished,) = core.on_entries_listed("b2", Reply.OK, ((0, 4),), 0)
    assert finished.lacking == (("~vacant-2", 5),)  # type: ignore[union-attr]


def test_an_idle_ledger_with_a_vacancy_costs_one_look_a_second() -> None:
    writer = WriterCore(ledger("b1 b2 ~vacant-2"), Spares(), WriterLimits(degraded_retry_ms=1_000))
    assert not writer.is_quiet
    assert writer.rests_until == 0
    assert writer.tick(5) == []
    assert writer.rests_until == 1_005
    writer.add(b"x", 10)
    assert writer.rests_until == 0
    assert vacancies_of(("b1", "b2", "~vacant-2")) == 4


def test_below_the_minimum_of_copies_a_writer_fails() -> None:
    """A writer with a minimum of 3 does not go on with 2. A bookie that is tried in vain does not reset the time."""
    spares = Spares()
    limits = WriterLimits(quorum_wait_ms=3_000, degraded_retry_ms=1_000)
    writer = WriterCore(ledger(), spares, limits, minimum_copies=3)
    patient = WriterCore(ledger(), spares, limits, minimum_copies=2)
    for one in (writer, patient):
        one.add(b"x", 0)
        one.on_add_answer(0, 0, 0, Reply.OK, 0)
        one.on_add_answer(0, 1, 0, Reply.OK, 0)
        one.on_add_answer(0, 2, 0, Reply.UNKNOWN, 0)
    spares.available = {"b3"}
    for now in range(100, 3_000, 100):
        effects = writer.tick(now)
        assert not some(WriterFailed, effects)
        if not writer.failed_bookies:  # tried again, and it fails the next add
            entry_id = writer.add(b"x", now).entry_id
            for position, reply in enumerate((Reply.OK, Reply.OK, Reply.UNKNOWN)):
                writer.on_add_answer(entry_id, position, 99, reply, now)
    assert isinstance(only(WriterFailed, writer.tick(3_000)).error, QuorumLostError)
    spares.available = set()
    for now in range(100, 60_000, 100):
        assert not some(WriterFailed, patient.tick(now))


def test_a_bookie_that_comes_back_ends_the_lack_of_copies() -> None:
    spares = Spares()
    writer = WriterCore(ledger(), spares, WriterLimits(quorum_wait_ms=3_000, degraded_retry_ms=1_000), minimum_copies=3)
    writer.add(b"x", 0)
    for position, reply in enumerate((Reply.OK, Reply.OK, Reply.UNKNOWN)):
        writer.on_add_answer(0, position, 0, reply, 0)
    spares.available = {"b3"}
    for now in range(100, 30_000, 100):
        assert not some(WriterFailed, writer.tick(now))
    assert not writer.failed_bookies
