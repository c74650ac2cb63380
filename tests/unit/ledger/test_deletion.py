"""The deletion of a ledger: it is repeated until the store confirms it, and else its outcome is unknown."""

from __future__ import annotations

from heliograph.actors.ledger.deletion import DeletionCore
from heliograph.actors.ledger.effects import Deleted, DeleteMetadata, Failed
from heliograph.actors.ledger.limits import MetadataLimits
from heliograph.metadata.errors import ConnectionLossError
from tests.unit.ledger.cores import only

BEGUN = 5_000
LIMITS = MetadataLimits(retry_ms=200, wait_ms=1_000)


def begun() -> tuple[DeletionCore, int]:
    """Return a deletion, and the number of its request."""
    core = DeletionCore(1, LIMITS)
    return core, only(DeleteMetadata, core.start(BEGUN)).request


def test_a_lost_answer_is_asked_for_again_once_and_after_a_pause() -> None:
    core, request = begun()
    assert core.on_metadata_unknown(request, BEGUN) == []
    assert core.tick(BEGUN + LIMITS.retry_ms - 1) == []
    again = only(DeleteMetadata, core.tick(BEGUN + LIMITS.retry_ms))
    assert again.request > request
    assert core.tick(BEGUN + 2 * LIMITS.retry_ms) == []  # its answer is on the way


def test_what_became_of_an_older_request_changes_nothing() -> None:
    core, request = begun()
    core.on_metadata_unknown(request, BEGUN)
    core.tick(BEGUN + LIMITS.retry_ms)
    core.on_metadata_unknown(request, BEGUN + LIMITS.retry_ms)
    assert core.tick(BEGUN + 2 * LIMITS.retry_ms) == []


def test_any_answer_that_it_is_gone_will_do() -> None:
    core, request = begun()
    core.on_metadata_unknown(request, BEGUN)
    core.tick(BEGUN + LIMITS.retry_ms)
    assert only(Deleted, core.on_metadata_deleted(request, BEGUN + 300))
    assert core.is_done
    assert core.on_metadata_deleted(request + 1, BEGUN + 301) == []
    assert core.tick(BEGUN + LIMITS.wait_ms) == []


def test_a_silent_store_leaves_the_outcome_open() -> None:
    core, request = begun()
    assert core.tick(BEGUN + LIMITS.wait_ms - 1) == []
    assert isinstance(only(Failed, core.tick(BEGUN + LIMITS.wait_ms)).error, ConnectionLossError)
    assert core.is_done
    core.on_metadata_unknown(request, BEGUN + LIMITS.wait_ms)
    assert core.tick(BEGUN + 2 * LIMITS.wait_ms) == []
