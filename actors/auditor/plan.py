"""Which findings become tasks now, and in which order tasks are taken. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.auditor.checks import Finding
from metadata.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Mark:
    """Record in metadata that a ledger misses copies on these bookies."""

    ledger_id: int
    missing_bookies: tuple[str, ...]


def marks(findings: Iterable[Finding], outstanding: Mapping[int, frozenset[str]], tasks_max: int) -> list[Mark]:
    """What to mark, the ledgers nearest to loss first, closed ones (which can be copied at once) before open ones.

    Ledgers with entries that nobody has a copy of come last and get no more than half of the room: their tasks may
    stand for ever, and must not keep others from being repaired.

    Args:
        outstanding: tasks there are already, with the bookies each names. One that says all that a finding says is
            left alone; one that says less is merged with the finding.
        tasks_max: tasks that may stand at one time, merges not counted; the rest waits for the next audit.
    """
    room = tasks_max - len(outstanding)
    chosen = []
    for found in sorted(findings, key=_urgency):
        known = outstanding.get(found.ledger_id)
        if known is not None and known.issuperset(found.missing_bookies):
            continue
        if known is None:
            if room <= (0 if found.copies_left else tasks_max // 2):
                continue
            room -= 1
        chosen.append(Mark(found.ledger_id, found.missing_bookies))
    return chosen


def must_be_fenced(ledger: LedgerMetadata, lost: Iterable[str]) -> bool:
    """Whether only closing the ledger makes it repairable: it is not closed, and its last segment names a lost bookie.

    A bookie that is alive and merely lacks entries is no reason: it gets them copied when the ledger is closed. If it
    lost its storage, its task says so once nobody went on with the ledger for long (``is_abandoned``).
    """
    return not ledger.is_closed and not set(ledger.last_segment.bookies).isdisjoint(lost)


def retry_pause_ms(failures: int, first_ms: int, longest_ms: int) -> int:
    """Pause after the n-th failure in a row (n from 1): doubling, with a ceiling."""
    return min(first_ms << min(failures - 1, 30), longest_ms)


def _urgency(found: Finding) -> tuple[bool, int, bool, int]:
    return found.copies_left == 0, found.copies_left, not found.is_closed, found.ledger_id
