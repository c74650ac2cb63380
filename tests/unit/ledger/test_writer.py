"""The writer core: cases that the scripts do not cover."""

from __future__ import annotations

import pytest

from heliograph.actors.errors import LedgerClosedError, LedgerError, LedgerFencedError, QuorumLostError
from heliograph.actors.ledger.effects import (
    AddsConfirmed,
    AddsFailed,
    CloseFailed,
    CopiesMissing,
    ReadMetadata,
    Reply,
    SendAdd,
    SendLac,
    WriteMetadata,
    WriterClosed,
    WriterFailed,
)
from heliograph.actors.ledger.limits import MetadataLimits, WriterLimits
from heliograph.actors.ledger.state import WriterState
from heliograph.actors.ledger.writer import WriterCore
from heliograph.base.errors import InvalidConfigError, MessageTooLargeError
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import LedgerState, Segment, Versioned
from tests.unit.ledger.cores import Spares, ledger, only, some


def stored(writer: WriterCore, position: int, requests: list[tuple[int, int]]) -> list[AddsConfirmed]:
    """Have the bookie that was at that position answer requests, each an entry id and an epoch."""
    return writer.on_adds_stored("b", [(entry_id, epoch, {"b": position}) for entry_id, epoch in requests])


def test_ids_and_lengths_are_given_together() -> None:
    writer = WriterCore(ledger(), Spares())
    sent = [writer.add(bytes(size), 0) for size in (3, 0, 5)]
    assert [(s.entry_id, s.length) for s in sent] == [(0, 3), (1, 3), (2, 8)]
    assert (writer.last_add_pushed, writer.length, writer.confirmed_length) == (2, 8, 0)


def test_confirmations_wait_for_their_turn() -> None:
    writer = WriterCore(ledger(), Spares())
    for _ in range(3):
        writer.add(b"x", 0)
    for entry_id in (2, 1):
        for position in range(3):
            assert writer.on_add_answer(entry_id, position, 0, Reply.OK, 0) == []
    assert writer.on_add_answer(0, 1, 0, Reply.OK, 0) == []
    assert writer.on_add_answer(0, 2, 0, Reply.OK, 0) == [AddsConfirmed(2)]  # I1 I2
    assert writer.entries_held == 1  # entry 0 waits for its third bookie
    assert writer.on_add_answer(0, 0, 0, Reply.OK, 0) == []
    assert (writer.entries_held, writer.bytes_held) == (0, 0)


def test_runs_are_confirmed_once_and_in_order() -> None:
    writer = WriterCore(ledger(), Spares())
    for _ in range(4):
        writer.add(b"x", 0)
    assert stored(writer, 0, [(1, 0), (2, 0), (0, 0)]) == []
    assert stored(writer, 1, [(2, 0), (3, 0)]) == []  # 0 has one copy
    assert stored(writer, 2, [(1, 0), (0, 0)]) == [AddsConfirmed(2)]  # I1 I2
    assert stored(writer, 2, [(1, 0), (0, 0)]) == []  # repeated
    assert writer.last_add_confirmed == 2


def test_a_run_of_an_older_epoch_counts_for_nothing() -> None:
    writer = WriterCore(ledger(), Spares("b4"), WriterLimits(ensemble_change_delay_ms=0))
    writer.add(b"x", 0)
    writer.add(b"x", 0)
    change = only(WriteMetadata, writer.on_add_answer(0, 1, 0, Reply.UNKNOWN, 0))
    again = some(SendAdd, writer.on_metadata_written(change.request, 1, 0))
    assert [send.entry_id for send in again] == [0, 1]
    assert stored(writer, 1, [(0, 0), (1, 0)]) == []  # of the bookie before
    assert stored(writer, 0, [(0, 0), (1, 0)]) == []  # that bookie stayed
    assert stored(writer, 1, [(0, 1), (1, 1)]) == [AddsConfirmed(1)]  # I1


def test_one_bookie_is_counted_once() -> None:
    writer = WriterCore(ledger(), Spares())
    writer.add(b"x", 0)
    for _ in range(3):
        assert writer.on_add_answer(0, 1, 0, Reply.OK, 0) == []
    assert writer.last_add_confirmed == -1  # I1


def test_the_window_bounds_entries_and_bytes() -> None:
    limits = WriterLimits(in_flight_entries_max=10, in_flight_bytes_max=100, entry_bytes_max=100)
    writer = WriterCore(ledger(), Spares(), limits)
    assert writer.has_room(100)
    writer.add(bytes(90), 0)
    assert writer.has_room(10)
    assert not writer.has_room(11)  # I15
    with pytest.raises(MessageTooLargeError) as caught:
        writer.add(bytes(101), 0)
    assert caught.value.limit == "100 bytes"
    assert writer.last_add_pushed == 0


def test_credentials_refused_ends_the_writer() -> None:
    writer = WriterCore(ledger(), Spares("b4"))
    writer.add(b"x", 0)
    effects = writer.on_add_answer(0, 0, 0, Reply.UNAUTHORIZED, 0)
    assert [type(effect) for effect in effects] == [AddsFailed, WriterFailed]
    with pytest.raises(LedgerError, match="credentials"):
        writer.add(b"x", 0)


def test_an_add_too_old_ends_the_writer() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(add_timeout_ms=20_000))
    writer.add(b"x", 1_000)
    assert writer.tick(20_999) == []
    effects = writer.tick(21_000)
    assert isinstance(only(AddsFailed, effects).error, QuorumLostError)


def broken_before_it_begins(writer: WriterCore, spares: Spares) -> None:
    """Return a writer with two of three bookies failed, each after its entries were confirmed, and one more add."""
    for _ in range(2):
        writer.add(b"x", 0)
    for entry_id, good, bad in ((0, 1, 2), (1, 2, 1)):
        writer.on_add_answer(entry_id, 0, 0, Reply.OK, 0)
        writer.on_add_answer(entry_id, good, 0, Reply.OK, 0)
        writer.on_add_answer(entry_id, bad, 0, Reply.UNKNOWN, 0)
    assert (writer.last_add_confirmed, writer.failed_bookies) == (1, ("b2", "b3"))
    assert writer.add(b"x", 100).targets == ((0, "b1"),)
    writer.on_add_answer(2, 0, 0, Reply.OK, 100)


def test_an_add_that_is_broken_from_its_beginning_waits_no_longer_than_others() -> None:
    spares = Spares()
    writer = WriterCore(ledger(), spares, WriterLimits(quorum_wait_ms=500))
    broken_before_it_begins(writer, spares)
    assert not some(AddsFailed, writer.tick(150))
    effects = writer.tick(650)
    assert isinstance(only(AddsFailed, effects).error, QuorumLostError)


def test_an_add_that_is_broken_from_its_beginning_hurries_a_delayed_change() -> None:
    spares = Spares("b4", "b5")
    writer = WriterCore(ledger(), spares, WriterLimits(ensemble_change_delay_ms=20_000))
    broken_before_it_begins(writer, spares)
    write = only(WriteMetadata, writer.tick(150))
    assert write.record.last_segment == Segment(2, ("b1", "b4", "b5"))


def test_holes_are_reported_on_the_bookie_that_has_them() -> None:
    """Entry 0 is confirmed and waits for b4. Then s1 replaces b1, which lacks the entry; s1 need not have it."""
    writer = WriterCore(ledger("b1 b2 b3 b4", ack_quorum=2), Spares("s1"))
    writer.add(b"x", 0)
    for position in (1, 2):
        writer.on_add_answer(0, position, 0, Reply.OK, 0)
    write = only(WriteMetadata, writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0))
    assert writer.entries_held == 1  # b4 has not answered
    effects = writer.on_metadata_written(write.request, 1, 0)
    assert writer.on_add_answer(0, 3, 0, Reply.OK, 0) == []
    effects += writer.tick(10)
    assert some(CopiesMissing, effects) == [CopiesMissing(1, "b1", 0)]
    assert not some(SendAdd, effects)  # confirmed entries stay where they are


def test_holes_are_reported_once_for_each_bookie_and_segment() -> None:
    writer = WriterCore(ledger(), Spares())
    for entry_id in range(2):
        writer.add(b"x", 0)
        writer.on_add_answer(entry_id, 0, 0, Reply.OK, 0)
        writer.on_add_answer(entry_id, 1, 0, Reply.OK, 0)
    writer.on_add_answer(0, 2, 0, Reply.UNKNOWN, 0)
    assert some(CopiesMissing, writer.tick(10)) == [CopiesMissing(1, "b3", 0)]
    writer.on_add_answer(1, 2, 0, Reply.UNKNOWN, 10)
    assert not some(CopiesMissing, writer.tick(20))


def test_a_close_reports_what_the_last_entries_may_lack() -> None:
    writer = WriterCore(ledger(), Spares())
    writer.add(b"xyz", 0)
    for position in (0, 1):
        writer.on_add_answer(0, position, 0, Reply.OK, 0)
    effects = writer.close(0)
    assert some(CopiesMissing, effects) == [CopiesMissing(1, "b3", 0)]  # it may or may not have the entry
    assert (writer.entries_held, writer.bytes_held) == (0, 0)


def test_the_first_answer_to_a_request_counts() -> None:
    writer = WriterCore(ledger(), Spares("b4"))
    writer.add(b"x", 0)
    writer.on_add_answer(0, 0, 0, Reply.OK, 0)
    assert writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0) == []
    assert writer.failed_bookies == ()
    assert some(WriteMetadata, writer.on_add_answer(0, 1, 0, Reply.UNKNOWN, 0))
    assert writer.on_add_answer(0, 1, 0, Reply.OK, 0) == []
    assert writer.on_add_answer(0, 2, 0, Reply.OK, 0) == []
    assert writer.entries_held == 1


def test_a_failed_bookie_is_told_to_the_chooser_once() -> None:
    spares = Spares()
    writer = WriterCore(ledger(), spares)
    for _ in range(3):
        writer.add(b"x", 0)
    for entry_id in range(3):
        writer.on_add_answer(entry_id, 1, 0, Reply.UNKNOWN, 0)
    assert spares.failures == ["b2"]
    assert not writer.is_quiet  # it has to be replaced


def test_a_confirmation_stops_the_clock_of_a_lost_quorum() -> None:
    spares = Spares()
    spares.available = {"b2", "b3"}
    writer = WriterCore(ledger(), spares, WriterLimits(quorum_wait_ms=1_000, degraded_retry_ms=100))
    writer.add(b"x", 0)
    writer.on_add_answer(0, 0, 0, Reply.OK, 0)
    for position in (1, 2):
        writer.on_add_answer(0, position, 0, Reply.UNKNOWN, 0)
    again = only(SendAdd, writer.tick(900))  # both are back
    assert [name for _, name in again.targets] == ["b2", "b3"]
    assert writer.on_add_answer(0, 1, again.epoch, Reply.OK, 900) == [AddsConfirmed(0)]
    sent = writer.add(b"x", 1_100)
    for position in (1, 2):
        writer.on_add_answer(1, position, sent.epoch, Reply.UNKNOWN, 1_100)
    assert not some(AddsFailed, writer.tick(1_200))
    assert some(WriterFailed, writer.tick(2_100) if writer.state is WriterState.OPEN else [])


def test_an_abort_fails_what_has_no_outcome_and_nothing_afterwards() -> None:
    writer = WriterCore(ledger(), Spares())
    for _ in range(2):
        writer.add(b"x", 0)
    why = LedgerError("the owner stops")
    effects = writer.abort(why)
    assert only(AddsFailed, effects) == AddsFailed(0, 1, why)
    assert only(WriterFailed, effects).error is why
    assert writer.abort(why) == []
    with pytest.raises(LedgerError, match="the owner stops"):
        writer.add(b"x", 0)


def test_bookies_that_come_and_go_are_nothing_to_a_writer_that_needs_none() -> None:
    writer = WriterCore(ledger(), Spares("b4"))
    writer.add(b"x", 0)
    assert writer.on_bookies_changed(0) == []
    writer.abort(LedgerError("the owner stops"))
    assert writer.on_bookies_changed(0) == []


def test_a_delayed_change_keeps_the_earliest_time() -> None:
    writer = WriterCore(ledger(), Spares("b4", "b5"), WriterLimits(ensemble_change_delay_ms=1_000))
    for _ in range(2):
        writer.add(b"x", 0)
    for entry_id, good in ((0, 1), (1, 2)):
        writer.on_add_answer(entry_id, 0, 0, Reply.OK, 0)
        writer.on_add_answer(entry_id, good, 0, Reply.OK, 0)
    writer.on_add_answer(0, 2, 0, Reply.UNKNOWN, 100)
    writer.on_add_answer(1, 1, 0, Reply.UNKNOWN, 700)
    assert not some(WriteMetadata, writer.tick(1_099))
    write = only(WriteMetadata, writer.tick(1_100))
    assert write.record.last_segment == Segment(2, ("b1", "b4", "b5"))  # the later one goes along


def test_a_read_only_bookie_does_not_wait_for_a_delayed_one() -> None:
    writer = WriterCore(ledger(), Spares("b4", "b5"), WriterLimits(ensemble_change_delay_ms=1_000))
    for _ in range(2):
        writer.add(b"x", 0)
    for entry_id, good in ((0, 1), (1, 2)):
        writer.on_add_answer(entry_id, 0, 0, Reply.OK, 0)
        writer.on_add_answer(entry_id, good, 0, Reply.OK, 0)
    assert not some(WriteMetadata, writer.on_add_answer(0, 2, 0, Reply.UNKNOWN, 100))
    assert some(WriteMetadata, writer.on_add_answer(1, 1, 0, Reply.READ_ONLY, 200))


def test_a_slow_bookie_is_no_lost_quorum() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(quorum_wait_ms=1_000, add_timeout_ms=30_000))
    writer.add(b"x", 0)
    writer.on_add_answer(0, 0, 0, Reply.OK, 0)
    writer.on_add_answer(0, 1, 0, Reply.UNKNOWN, 100)  # b3 can still make up the quorum
    for now in range(1_000, 5_000, 500):
        assert not some(AddsFailed, writer.tick(now))
    assert writer.on_add_answer(0, 2, 0, Reply.OK, 5_000) == [AddsConfirmed(0)]
    assert not writer.is_quiet
    writer.tick(6_000)  # the LAC is sent
    assert not writer.is_quiet  # a failed bookie is still to be replaced


def test_a_bookie_that_comes_back_is_used_again_at_once() -> None:
    spares = Spares()
    writer = WriterCore(ledger(), spares)
    writer.add(b"x", 0)
    writer.on_add_answer(0, 1, 0, Reply.UNKNOWN, 0)
    assert "b2" in writer.failed_bookies
    spares.available = {"b2"}
    again = only(SendAdd, writer.on_bookies_changed(10))
    assert again.targets == ((1, "b2"),)
    assert writer.failed_bookies == ()


def test_an_entry_as_big_as_the_limit_is_taken_and_the_first_one_whatever_the_window() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(in_flight_bytes_max=100, entry_bytes_max=100))
    writer.check_size(bytes(100))
    assert writer.has_room(200)  # nothing is held
    writer.add(bytes(1), 0)
    assert not writer.has_room(100)


def test_a_store_that_is_silent_ends_the_change() -> None:
    limits = WriterLimits(metadata=MetadataLimits(retry_ms=100, wait_ms=1_000))
    writer = WriterCore(ledger(), Spares("b4"), limits)
    writer.add(b"x", 0)
    write = only(WriteMetadata, writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0))
    assert writer._replacing
    assert writer.on_metadata_unknown(write.request, 10) == []
    read = only(ReadMetadata, writer.tick(110))
    assert writer.on_metadata_written(write.request, 1, 120) == []  # late: the record is being read again
    assert writer.on_metadata_unknown(read.request, 200) == []
    effects = writer.tick(1_000)
    assert isinstance(only(WriterFailed, effects).error, ConnectionLossError)
    assert isinstance(only(AddsFailed, effects).error, ConnectionLossError)


def test_a_change_is_not_made_on_a_record_that_is_not_open() -> None:
    writer = WriterCore(ledger(), Spares("b4"))
    writer.add(b"x", 0)
    write = only(WriteMetadata, writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0))
    read = only(ReadMetadata, writer.on_metadata_conflict(write.request, 0))
    taken = ledger(state=LedgerState.IN_RECOVERY).record
    effects = writer.on_metadata_read(read.request, Versioned(taken, 5), 0)
    assert isinstance(only(WriterFailed, effects).error, LedgerFencedError)  # I9


def test_an_older_record_does_not_overwrite_a_newer_one() -> None:
    writer = WriterCore(Versioned(ledger().record, 3), Spares("b4"))
    writer.add(b"x", 0)
    write = only(WriteMetadata, writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0))
    read = only(ReadMetadata, writer.on_metadata_conflict(write.request, 0))
    again = only(ReadMetadata, writer.on_metadata_read(read.request, Versioned(ledger().record, 2), 0))
    assert again.request > read.request


def test_close_fails_what_has_no_outcome_and_only_that() -> None:
    writer = WriterCore(ledger(), Spares())
    for _ in range(3):
        writer.add(b"x", 0)
    for position in (0, 1):
        writer.on_add_answer(0, position, 0, Reply.OK, 0)
    effects = writer.close(0)
    failed, write = only(AddsFailed, effects), only(WriteMetadata, effects)
    assert (failed.first_entry_id, failed.last_entry_id) == (1, 2)
    assert isinstance(failed.error, LedgerClosedError)
    assert (write.record.last_entry_id, write.record.length) == (0, 1)  # I5
    assert writer.on_add_answer(1, 0, 0, Reply.OK, 0) == []
    assert some(WriterClosed, writer.on_metadata_written(write.request, 1, 0))
    assert writer.state is WriterState.CLOSED
    assert writer.is_quiet


def test_a_failed_writer_may_be_closed_and_tells_no_outcome_twice() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(quorum_wait_ms=100))
    writer.add(b"x", 0)
    writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0)
    writer.on_add_answer(0, 1, 0, Reply.UNKNOWN, 0)
    assert some(AddsFailed, writer.tick(100))
    effects = writer.close(200)
    assert not some(AddsFailed, effects)
    write = only(WriteMetadata, effects)
    assert write.record.last_entry_id == -1
    assert only(WriterClosed, writer.on_metadata_written(write.request, 1, 200)).metadata.is_closed


def test_close_is_refused_when_another_client_closed_elsewhere() -> None:
    writer = WriterCore(ledger(), Spares())
    write = only(WriteMetadata, writer.close(0))
    read = only(ReadMetadata, writer.on_metadata_conflict(write.request, 0))
    elsewhere = ledger(state=LedgerState.CLOSED, last=4).record
    effects = writer.on_metadata_read(read.request, Versioned(elsewhere, 3), 0)
    assert isinstance(only(CloseFailed, effects).error, LedgerFencedError)  # I5
    assert isinstance(writer.closed_reason, LedgerFencedError)


def test_the_lac_is_told_once_it_stands_still() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(explicit_lac_interval_ms=100))
    writer.add(b"x", 0)
    assert not writer.is_quiet
    for position in range(3):
        writer.on_add_answer(0, position, 0, Reply.OK, 10)
    assert writer.tick(50) == []
    assert writer.tick(100) == [SendLac(1, 0, ("b1", "b2", "b3"))]
    assert writer.tick(300) == []
    assert writer.is_quiet
    writer.add(b"x", 1_000)  # carries LAC 0
    for position in range(3):
        writer.on_add_answer(1, position, 0, Reply.OK, 1_000)
    writer.add(b"x", 1_090)  # carries LAC 1: no explicit LAC is due while it is under way
    assert writer.tick(1_095) == []
    assert writer.tick(2_000) == []


def test_a_writer_that_tells_no_lac_is_quiet_without() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(explicit_lac_interval_ms=0))
    writer.add(b"x", 0)
    for position in range(3):
        writer.on_add_answer(0, position, 0, Reply.OK, 0)
    assert writer.is_quiet
    assert writer.tick(10_000) == []


def test_the_lac_is_not_told_between_adds_that_follow_each_other() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(explicit_lac_interval_ms=100))
    for entry_id in range(3):
        writer.add(b"x", 60 * entry_id)
        for position in range(3):
            writer.on_add_answer(entry_id, position, 0, Reply.OK, 60 * entry_id)
        assert writer.tick(60 * entry_id + 50) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"in_flight_entries_max": 0},
        {"entry_bytes_max": 0},
        {"entry_bytes_max": 64 << 20},
        {"quorum_wait_ms": 0},
        {"quorum_wait_ms": 40_000},
        {"degraded_retry_ms": 0},
        {"ensemble_change_delay_ms": -1},
        {"explicit_lac_interval_ms": -1},
    ],
)
def test_limits_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidConfigError):
        WriterLimits(**wrong)  # type: ignore[arg-type]
