"""Decides which findings become tasks now, which ledgers are fenced, and the pauses between attempts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from heliograph.actors.auditor.checks import Finding
from heliograph.actors.ledger.schedule import is_vacancy
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
    for found in sorted(findings, key=urgency):
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


def places_to_fill(ledger: LedgerMetadata, lost: Collection[str]) -> list[int]:
    """Return the positions of an open ledger's last segment that are vacant or name a lost bookie.

    Their copies cannot be made before the ledger is closed, or before its writer goes on with other bookies. A bookie
    that is alive and lacks entries does not count: it gets them once the ledger is closed.
    """
    if ledger.is_closed:
        return []
    return [p for p, name in enumerate(ledger.last_segment.bookies) if name in lost or is_vacancy(name)]


def must_be_fenced(places: Collection[int], can_be_filled: bool) -> bool:
    """Whether an open ledger with these ``places_to_fill`` is to be closed, if its writer has not filled them in time.

    Where no bookie can take a place, a fence makes no copy, and could leave a topic without a ledger to write to.
    """
    return bool(places) and can_be_filled  # I20


def must_be_abandoned(ledger: LedgerMetadata, empty: Collection[str]) -> bool:
    """Whether an open ledger is to be closed for bookies that lost their storage and fenced it when they came back.

    Args:
        empty: the bookies of its task that are alive; its task says that the ledger is abandoned.
    """
    return not ledger.is_closed and not set(ledger.last_segment.bookies).isdisjoint(empty)


def retry_pause_ms(failures: int, first_ms: int, longest_ms: int) -> int:
    """Return the pause after a number of failures in a row: it doubles up to ``longest_ms``."""
    assert failures >= 1, "a pause follows a failure"
    return min(first_ms << min(failures - 1, 30), longest_ms)


def urgency(found: Finding) -> tuple[bool, int, bool, int]:
    """Return a key that sorts findings by the order in which they become tasks."""
    return found.copies_left == 0, found.copies_left, not found.is_closed, found.ledger_id
