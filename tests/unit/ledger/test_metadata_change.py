"""Changes and the deletion of a record, through conflicts, lost requests and lost replies."""

from __future__ import annotations

from dataclasses import replace

from heliograph.actors.ledger.deletion import DeletionCore
from heliograph.actors.ledger.effects import Deleted, DeleteMetadata, Failed, ReadMetadata, WriteMetadata
from heliograph.actors.ledger.limits import MetadataLimits
from heliograph.actors.ledger.metadata_change import MetadataChange
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import LedgerMetadata, LedgerState, Versioned
from tests.unit.ledger.cores import ledger, only

LIMITS = MetadataLimits(retry_ms=200, wait_ms=1_000)
BEGUN = 5_000


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


def deletion() -> tuple[DeletionCore, int]:
    """Return a deletion, and the number of its request."""
    core = DeletionCore(1, LIMITS)
    return core, only(DeleteMetadata, core.start(BEGUN)).request


def test_a_lost_answer_is_asked_for_again_once_and_after_a_pause() -> None:
    core, request = deletion()
    assert core.on_metadata_unknown(request, BEGUN) == []
    assert core.tick(BEGUN + LIMITS.retry_ms - 1) == []
    again = only(DeleteMetadata, core.tick(BEGUN + LIMITS.retry_ms))
    assert again.request > request
    assert core.tick(BEGUN + 2 * LIMITS.retry_ms) == []  # its answer is on the way


def test_what_became_of_an_older_request_changes_nothing() -> None:
    core, request = deletion()
    core.on_metadata_unknown(request, BEGUN)
    core.tick(BEGUN + LIMITS.retry_ms)
    core.on_metadata_unknown(request, BEGUN + LIMITS.retry_ms)
    assert core.tick(BEGUN + 2 * LIMITS.retry_ms) == []


def test_any_answer_that_it_is_gone_will_do() -> None:
    core, request = deletion()
    core.on_metadata_unknown(request, BEGUN)
    core.tick(BEGUN + LIMITS.retry_ms)
    assert only(Deleted, core.on_metadata_deleted(request, BEGUN + 300))
    assert core.is_done
    assert core.on_metadata_deleted(request + 1, BEGUN + 301) == []
    assert core.tick(BEGUN + LIMITS.wait_ms) == []


def test_a_silent_store_leaves_the_outcome_open() -> None:
    core, request = deletion()
    assert core.tick(BEGUN + LIMITS.wait_ms - 1) == []
    assert isinstance(only(Failed, core.tick(BEGUN + LIMITS.wait_ms)).error, ConnectionLossError)
    assert core.is_done
    core.on_metadata_unknown(request, BEGUN + LIMITS.wait_ms)
    assert core.tick(BEGUN + 2 * LIMITS.wait_ms) == []
