"""One compare-and-set through conflicts, lost requests and lost replies."""

from __future__ import annotations

from dataclasses import replace

from heliograph.actors.ledger.effects import ReadMetadata, WriteMetadata
from heliograph.actors.ledger.limits import MetadataLimits
from heliograph.actors.ledger.metadata_change import MetadataChange
from heliograph.metadata.model import LedgerMetadata, LedgerState, Versioned
from tests.unit.ledger.cores import ledger, only

LIMITS = MetadataLimits(retry_ms=200, wait_ms=1_000)


def marked(record: LedgerMetadata) -> LedgerMetadata | None:
    """A change that is needed once."""
    if record.state is LedgerState.IN_RECOVERY:
        return None
    return replace(record, state=LedgerState.IN_RECOVERY)


def begun() -> tuple[MetadataChange, WriteMetadata]:
    change = MetadataChange(ledger(), LIMITS)
    return change, only(WriteMetadata, change.begin(marked, 0))


def test_a_lost_request_is_found_out_by_a_look_and_written_again() -> None:
    change, write = begun()
    assert change.on_unknown(write.request, 0) == []
    look = only(ReadMetadata, change.tick(LIMITS.retry_ms))
    again = only(WriteMetadata, change.on_read(look.request, ledger()))  # the version is unchanged
    assert again.version == write.version
    assert change.on_written(again.request, 1) == []
    assert change.outcome == Versioned(write.record, 1)


def test_a_lost_reply_is_found_out_by_a_look_and_nothing_is_written_again() -> None:
    change, write = begun()
    change.on_unknown(write.request, 0)
    look = only(ReadMetadata, change.tick(LIMITS.retry_ms))
    stored = Versioned(write.record, 1)
    assert change.on_read(look.request, stored) == []
    assert change.outcome == stored


def test_one_loss_is_one_pause() -> None:
    change, write = begun()
    change.on_unknown(write.request, 0)
    change.on_unknown(write.request, 100)
    assert change.tick(LIMITS.retry_ms - 1) == []
    assert change.tick(LIMITS.retry_ms)
    assert change.tick(2 * LIMITS.retry_ms) == []  # the read is under way


def test_an_abandoned_change_asks_for_nothing_and_hears_nothing() -> None:
    change, write = begun()
    change.on_unknown(write.request, 0)
    change.abandon()
    assert not change.is_active
    assert change.tick(LIMITS.wait_ms) == []
    assert change.on_written(write.request, 1) == change.on_conflict(write.request) == []
    assert change.outcome is None
    assert change.current == ledger()


def test_answers_to_an_abandoned_change_are_not_taken_for_those_of_the_next() -> None:
    change, first = begun()
    change.abandon()
    second = only(WriteMetadata, change.begin(marked, 0))
    assert change.on_conflict(first.request) == change.on_missing(first.request) == []
    assert change.outcome is None
    change.on_written(second.request, 1)
    assert change.outcome == Versioned(second.record, 1)
