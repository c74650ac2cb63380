"""What is wrong with the cluster's copies, decided from what was seen of it. Pure: time is passed in.

A bookie that a ledger names is lost when it has been neither available nor read-only for longer than a delay; a
read-only bookie still serves its copies. The delay starts when this process first misses the bookie, so a new auditor
is never hastier than its predecessor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from metadata.model import LedgerMetadata, Segment


@dataclass(frozen=True, slots=True)
class Finding:
    """A ledger with copies missing.

    ``copies_left`` is the least number of copies that any of its entries may be down to.
    """

    ledger_id: int
    missing_bookies: tuple[str, ...]
    copies_left: int
    is_closed: bool


class Absences:
    """Since when each needed bookie has been missed. Times are milliseconds on one monotonic clock."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._missed_since: dict[str, int] = {}  # at most one for each bookie that a ledger names

    def observe(self, now_ms: int, needed: Collection[str], alive: Collection[str]) -> frozenset[str]:
        """Take note of who is there at ``now_ms``; the bookies that are lost as of now."""
        absent = set(needed) - set(alive)
        self._missed_since = {bookie: self._missed_since.get(bookie, now_ms) for bookie in sorted(absent)}
        return frozenset(bookie for bookie, since in self._missed_since.items() if now_ms - since >= self._delay_ms)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next absent bookie will count as lost, or None when none is about to."""
        due = [since + self._delay_ms for since in self._missed_since.values()]
        return min((at for at in due if at > now_ms), default=None)

    @property
    def absent(self) -> dict[str, int]:
        """Every bookie missed at the last observation, and since when."""
        return dict(self._missed_since)


def named_bookies(ledgers: Iterable[LedgerMetadata]) -> set[str]:
    """Every bookie that a segment of one of the ledgers names."""
    return {bookie for ledger in ledgers for segment in ledger.segments for bookie in segment.bookies}


def ledgers_on(ledgers: Iterable[LedgerMetadata], lost: Collection[str]) -> list[Finding]:
    """A finding for each ledger that names a lost bookie in a segment that can hold entries."""
    findings = []
    for ledger in ledgers:
        segments = [segment for segment in ledger.segments if _may_hold_entries(ledger, segment)]
        missing = {bookie for segment in segments for bookie in segment.bookies if bookie in lost}
        if missing:
            findings.append(finding(ledger, missing))
    return findings


def finding(ledger: LedgerMetadata, missing: Collection[str]) -> Finding:
    """The finding that ``ledger`` lacks the copies that ``missing`` should hold."""
    left = [_copies_left(ledger, segment, missing) for segment in ledger.segments if _may_hold_entries(ledger, segment)]
    return Finding(
        ledger_id=ledger.ledger_id,
        missing_bookies=tuple(sorted(missing)),
        copies_left=min(left, default=ledger.write_quorum),
        is_closed=ledger.is_closed,
    )


def _may_hold_entries(ledger: LedgerMetadata, segment: Segment) -> bool:
    return not ledger.is_closed or segment.first_entry_id <= ledger.last_entry_id


def _copies_left(ledger: LedgerMetadata, segment: Segment, missing: Collection[str]) -> int:
    """The fewest bookies left in any write set of the segment: entry n is at positions (n + i) mod E, i < Qw."""
    present = [bookie not in missing for bookie in segment.bookies]
    size = ledger.ensemble_size
    return min(sum(present[(start + i) % size] for i in range(ledger.write_quorum)) for start in range(size))
