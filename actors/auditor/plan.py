"""Decides which findings become tasks now, which ledgers are fenced, and the pauses between attempts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heliograph.actors.auditor.checks import Finding
from heliograph.metadata.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class TaskMark:
    """A task to be marked: the ledger lacks copies on these bookies."""

    ledger_id: int
    missing_bookies: tuple[str, ...]


def marks(findings: Iterable[Finding], outstanding: Mapping[int, frozenset[str]], tasks_max: int) -> list[TaskMark]:
    """Return the tasks to mark: ledgers with the fewest copies first, closed ones before open ones.

    Closed ledgers can be copied at once. Ledgers with entries that have no copy left come last and get at most half of
    the room: their tasks may never be done, and must not keep others from being repaired.

    Args:
        outstanding: the existing tasks, with the bookies that each names. A finding that its task covers is left out;
            any other finding of a ledger with a task extends that task.
        tasks_max: how many tasks may exist at once (I15). Findings beyond wait for the next audit.
    """
    room = room_before = tasks_max - len(outstanding)
    chosen = []
    for found in sorted(findings, key=_urgency):
        known = outstanding.get(found.ledger_id)
        if known is not None and known.issuperset(found.missing_bookies):
            continue
        if known is None:
            if room <= (0 if found.copies_left else tasks_max // 2):
                continue
            room -= 1
        chosen.append(TaskMark(found.ledger_id, found.missing_bookies))
    created = sum(mark.ledger_id not in outstanding for mark in chosen)
    assert created <= max(room_before, 0), "new tasks fit the room"  # I15
    return chosen


def must_be_fenced(ledger: LedgerMetadata, lost: Iterable[str]) -> bool:
    """Whether the ledger must be closed before repair: it is not CLOSED, and its last segment names a lost bookie.

    A bookie that is alive and lacks entries does not count: it gets them once the ledger is closed. If it lost its
    storage and no writer went on with the ledger for long, its task says so (``is_abandoned``).
    """
    return not ledger.is_closed and not set(ledger.last_segment.bookies).isdisjoint(lost)


def retry_pause_ms(failures: int, first_ms: int, longest_ms: int) -> int:
    """Return the pause after a number of failures in a row: it doubles up to ``longest_ms``."""
    assert failures >= 1, "a pause follows a failure"
    return min(first_ms << min(failures - 1, 30), longest_ms)


def _urgency(found: Finding) -> tuple[bool, int, bool, int]:
    return found.copies_left == 0, found.copies_left, not found.is_closed, found.ledger_id
