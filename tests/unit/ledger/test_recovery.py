"""The recovery core: cases that the scripts do not cover."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.actors.errors import LedgerError, LedgerRecoveryError, NoSuchLedgerError
from heliograph.actors.ledger.effects import (
    Effect,
    Failed,
    ReadEntry,
    ReadLac,
    ReadMetadata,
    RecoveryFinished,
    Reply,
    SendAdd,
    WriteMetadata,
)
from heliograph.actors.ledger.limits import MetadataLimits, RecoveryLimits
from heliograph.actors.ledger.recovery import RecoveryCore
from heliograph.actors.ledger.state import RecoveryPhase
from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.errors import ConnectionLossError, RecordError
from heliograph.metadata.model import LedgerState, Segment, Versioned
from tests.unit.ledger.cores import Spares, entry, ledger, only, some


def fencing(core: RecoveryCore) -> ReadLac:
    """Start a recovery up to its fencing reads."""
    write = only(WriteMetadata, core.start(0))
    assert write.record.state is LedgerState.IN_RECOVERY
    return only(ReadLac, core.on_metadata_written(write.request, 1, 0))


def fenced(core: RecoveryCore, lac: int = -1) -> list[Effect]:
    """Run a recovery past its fencing reads, which all answer ``lac``."""
    assert fencing(core).fence
    effects: list[Effect] = []
    for position in range(3):
        effects += core.on_lac_answer(position, Reply.OK, lac, None, 0)
    return effects


def test_a_closed_ledger_is_taken_as_it_is() -> None:
    found = ledger(state=LedgerState.CLOSED, last=7)
    core = RecoveryCore(found, Spares())
    assert core.start(0) == [RecoveryFinished(found.record, 0)]
    assert core.is_done
    assert core.tick(10**9) == []


def test_a_ledger_in_recovery_needs_no_write_to_begin() -> None:
    core = RecoveryCore(ledger(state=LedgerState.IN_RECOVERY), Spares())
    assert some(ReadLac, core.start(0))  # I9: recoveries do not invalidate each other


def test_every_read_fences() -> None:
    core = RecoveryCore(ledger(), Spares())
    reads = some(ReadEntry, fenced(core, 4))
    assert [read.entry_id for read in reads] == [5, 6]
    assert all(read.fence for read in reads)  # I7


def test_present_entries_go_back_with_the_frozen_lac() -> None:
    core = RecoveryCore(ledger(), Spares())
    fenced(core, 4)
    sent: list[SendAdd] = []
    for entry_id in (5, 6, 7):
        sent += some(SendAdd, core.on_entry_answer(entry_id, entry_id % 3, Reply.OK, entry(entry_id), 0))
        for position in range(3):
            core.on_add_answer(entry_id, position, 0, Reply.OK, 0)
    assert [add.entry_id for add in sent] == [5, 6, 7]
    assert all(add.recovery and add.last_add_confirmed == 4 for add in sent)  # I3
    assert core.last_add_confirmed == 7


def test_verdicts_are_acted_on_in_entry_order() -> None:
    core = RecoveryCore(ledger(), Spares())
    fenced(core, 4)
    assert not some(SendAdd, core.on_entry_answer(6, 0, Reply.OK, entry(6), 0))
    effects: list[Effect] = []
    for position in (2, 0):
        effects += core.on_entry_answer(5, position, Reply.ABSENT, None, 0)
    assert not some(SendAdd, effects), "what lies after the first absent entry is not in the ledger"


def test_the_length_comes_from_the_entry_at_the_end() -> None:
    core = RecoveryCore(ledger(more_segments=(Segment(9, ("b4", "b5", "b6")),)), Spares())
    assert [name for _, name in fencing(core).targets] == ["b4", "b5", "b6"]
    for position in (0, 1):
        core.on_lac_answer(position, Reply.ABSENT, -1, None, 0)
    effects: list[Effect] = []
    for position in (0, 1):
        effects += core.on_entry_answer(9, position, Reply.ABSENT, None, 0)
    read = only(ReadEntry, effects)
    assert (read.entry_id, {name for _, name in read.targets}) == (8, {"b1", "b2", "b3"})
    core.on_entry_answer(8, 2, Reply.ABSENT, None, 0)
    core.on_entry_answer(8, 0, Reply.DAMAGED, None, 0)
    effects = core.on_entry_answer(8, 1, Reply.OK, replace(entry(8), length=1234), 0)
    write = only(WriteMetadata, effects)
    assert (write.record.last_entry_id, write.record.length) == (8, 1234)  # I5
    finished = only(RecoveryFinished, core.on_metadata_written(write.request, 2, 0))
    assert finished.last == replace(entry(8), length=1234)


def test_the_last_entry_is_told_unless_another_recovery_found_a_later_one() -> None:
    for ends_at, last in ((5, entry(5)), (6, None)):
        core = RecoveryCore(ledger(), Spares())
        fenced(core, 4)
        core.on_entry_answer(5, 0, Reply.OK, entry(5), 0)
        effects = [effect for position in range(3) for effect in core.on_add_answer(5, position, 0, Reply.OK, 0)]
        effects += [effect for place in (0, 1) for effect in core.on_entry_answer(6, place, Reply.ABSENT, None, 0)]
        write = only(WriteMetadata, effects)
        assert write.record.last_entry_id == 5
        read = only(ReadMetadata, core.on_metadata_conflict(write.request, 0))
        closed = Versioned(replace(write.record, last_entry_id=ends_at), 9)
        assert only(RecoveryFinished, core.on_metadata_read(read.request, closed, 0)).last == last


def test_a_confirmed_entry_without_a_copy_stops_the_recovery() -> None:
    core = RecoveryCore(ledger(), Spares())
    fenced(core, 8)
    for position in (0, 1):
        core.on_entry_answer(9, position, Reply.ABSENT, None, 0)
    assert core.phase is RecoveryPhase.MEASURING
    effects: list[Effect] = []
    for position in range(3):
        effects += core.on_entry_answer(8, position, Reply.ABSENT, None, 0)
    assert isinstance(only(Failed, effects).error, LedgerRecoveryError)


def test_the_close_is_refused_on_a_record_that_went_back_to_open() -> None:
    core = RecoveryCore(ledger(), Spares())
    fenced(core)
    effects: list[Effect] = []
    for position in (0, 1):
        effects += core.on_entry_answer(0, position, Reply.ABSENT, None, 0)
    write = only(WriteMetadata, effects)
    read = only(ReadMetadata, core.on_metadata_conflict(write.request, 0))
    effects = core.on_metadata_read(read.request, Versioned(ledger().record, 9), 0)
    assert isinstance(only(Failed, effects).error, LedgerRecoveryError)  # I9


def test_private_segments_appear_with_the_close_and_only_if_they_hold_something() -> None:
    core = RecoveryCore(ledger(), Spares("b4", "b5"))
    fenced(core, 4)
    core.on_entry_answer(5, 2, Reply.OK, entry(5), 0)
    again = only(SendAdd, core.on_add_answer(5, 0, 0, Reply.UNKNOWN, 0))  # b4 replaces b1
    assert again.targets == ((0, "b4"),)
    for position in (0, 1):
        core.on_add_answer(5, position, 1, Reply.OK, 0)
    assert core.last_add_confirmed == 5
    core.on_add_answer(5, 2, 1, Reply.UNKNOWN, 0)  # a segment for entries from 6 on, of which there are none
    effects: list[Effect] = []
    for position in (0, 1):
        effects += core.on_entry_answer(6, position, Reply.ABSENT, None, 0)
    closing = only(WriteMetadata, effects).record
    assert closing.segments == (Segment(0, ("b1", "b2", "b3")), Segment(5, ("b4", "b2", "b3")))  # I8


def test_reads_and_writes_in_flight_are_bounded() -> None:
    core = RecoveryCore(ledger(), Spares(), RecoveryLimits(reads_max=4, in_flight_entries_max=6))
    reads = some(ReadEntry, fenced(core))
    for entry_id in range(20):
        if entry_id >= len(reads):
            break
        reads += some(ReadEntry, core.on_entry_answer(entry_id, entry_id % 3, Reply.OK, entry(entry_id), 0))
    assert len(reads) == 6  # I15: no further read until these entries are written back


def test_what_is_being_written_back_is_bounded_by_its_bytes() -> None:
    core = RecoveryCore(ledger(), Spares(), RecoveryLimits(in_flight_bytes_max=100))
    reads = [read.entry_id for read in some(ReadEntry, fenced(core))]
    for entry_id in range(20):
        if entry_id not in reads:
            break
        effects = core.on_entry_answer(entry_id, entry_id % 3, Reply.OK, entry(entry_id, bytes(50)), 0)
        reads += [read.entry_id for read in some(ReadEntry, effects)]
    assert reads == [0, 1, 2, 3]  # I15: two of 50 bytes are held, and what was asked for before comes in
    effects = []
    for position in range(3):
        for entry_id in (0, 1, 2, 3):
            effects += core.on_add_answer(entry_id, position, 0, Reply.OK, 0)
    assert some(ReadEntry, effects), "as soon as there is room"


def test_nothing_is_read_or_written_after_the_end_was_found_or_the_attempt_failed() -> None:
    core = RecoveryCore(ledger(), Spares("b4"))
    fenced(core, 4)
    core.on_entry_answer(5, 2, Reply.OK, entry(5), 0)
    for position in (0, 1):
        core.on_entry_answer(6, position, Reply.ABSENT, None, 0)
    assert not some(ReadEntry, core.on_add_answer(5, 0, 0, Reply.OK, 0))
    assert core.on_entry_answer(7, 1, Reply.OK, entry(7), 0) == []
    core = RecoveryCore(ledger(), Spares("b4"))
    fenced(core, 4)
    core.on_entry_answer(5, 2, Reply.OK, entry(5), 0)
    for position in range(3):
        core.on_entry_answer(6, position, Reply.UNKNOWN, None, 0)
    assert core.is_done
    assert core.on_add_answer(5, 0, 0, Reply.UNKNOWN, 0) == []
    assert core.on_entry_answer(7, 1, Reply.OK, entry(7), 0) == []
    assert core.on_lac_answer(0, Reply.OK, 9, None, 0) == []


@pytest.mark.parametrize("reply", [Reply.UNAUTHORIZED])
def test_credentials_refused(reply: Reply) -> None:
    core = RecoveryCore(ledger(), Spares())
    fencing(core)
    assert isinstance(only(Failed, core.on_lac_answer(0, reply, -1, None, 0)).error, LedgerError)


def test_no_progress_and_no_store() -> None:
    core = RecoveryCore(ledger(), Spares(), RecoveryLimits(progress_timeout_ms=1_000))
    fencing(core)
    assert core.tick(999) == []
    assert isinstance(only(Failed, core.tick(1_000)).error, LedgerRecoveryError)
    core = RecoveryCore(ledger(), Spares(), RecoveryLimits(metadata=MetadataLimits(wait_ms=500)))
    write = only(WriteMetadata, core.start(0))
    core.on_metadata_unknown(write.request, 0)
    assert some(ReadMetadata, core.tick(200))
    assert isinstance(only(Failed, core.tick(500)).error, ConnectionLossError)


def test_progress_is_counted_from_the_last_step() -> None:
    core = RecoveryCore(ledger(), Spares(), RecoveryLimits(progress_timeout_ms=1_000))
    write = only(WriteMetadata, core.start(0))
    core.on_metadata_written(write.request, 1, 900)
    assert core.tick(1_800) == []
    for position in range(3):
        core.on_lac_answer(position, Reply.OK, 4, None, 1_800)
    core.on_entry_answer(5, 2, Reply.OK, entry(5), 1_800)
    for position in (0, 1):
        core.on_add_answer(5, position, 0, Reply.OK, 1_850)
    assert core.last_add_confirmed == 5
    assert core.tick(2_800) == []
    assert isinstance(only(Failed, core.tick(2_850)).error, LedgerRecoveryError)
    assert core.is_done
    assert core.tick(9_999) == []


def test_a_bookie_that_fails_a_re_add_is_told_to_the_chooser_once_and_its_late_answers_are_dropped() -> None:
    spares = Spares("b4")
    core = RecoveryCore(ledger(), spares)
    fenced(core, 4)
    core.on_entry_answer(5, 2, Reply.OK, entry(5), 0)
    core.on_entry_answer(6, 2, Reply.OK, entry(6), 0)
    again = some(SendAdd, core.on_add_answer(5, 0, 0, Reply.UNKNOWN, 0))
    assert [(add.entry_id, add.targets) for add in again] == [(5, ((0, "b4"),)), (6, ((0, "b4"),))]
    assert not some(SendAdd, core.on_add_answer(6, 0, 0, Reply.UNKNOWN, 0))  # the older request to b1
    core.on_add_answer(6, 0, 0, Reply.OK, 0)
    core.on_add_answer(5, 1, 0, Reply.OK, 0)
    assert core.last_add_confirmed == 4  # b1 is not in the ensemble now
    assert spares.failures == ["b1"]


def test_a_record_that_cannot_be_read_ends_the_recovery() -> None:
    core = RecoveryCore(ledger(), Spares())
    write = only(WriteMetadata, core.start(0))
    read = only(ReadMetadata, core.on_metadata_conflict(write.request, 0))
    error = RecordError("written by a newer version: upgrade")
    assert core.on_metadata_refused(write.request, error, 0) == []  # the answer to an older request
    assert only(Failed, core.on_metadata_refused(read.request, error, 0)).error is error
    assert core.is_done


def test_a_deleted_ledger() -> None:
    core = RecoveryCore(ledger(), Spares())
    write = only(WriteMetadata, core.start(0))
    assert isinstance(only(Failed, core.on_metadata_missing(write.request, 0)).error, NoSuchLedgerError)


def test_limits() -> None:
    for wrong in ({"reads_max": 0}, {"in_flight_bytes_max": 0}, {"progress_timeout_ms": 0}):
        with pytest.raises(InvalidConfigError):
            RecoveryLimits(**wrong)  # type: ignore[arg-type]
