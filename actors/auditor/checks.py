"""Decides which bookies are lost and which ledgers lack copies. Pure: time is passed in.

A bookie that a ledger names is lost when it has been neither available nor read-only for longer than a delay. A
read-only bookie still serves its copies. The delay starts when this process first misses the bookie, so a new auditor
never calls a bookie lost earlier than its predecessor would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.metadata.model import LedgerMetadata, Segment


@dataclass(frozen=True, slots=True)
class Finding:
    """A ledger that lacks copies.

    ``copies_left`` is the least number of copies that one of its entries may have: 0 <= copies_left <= Qw.
    """

    ledger_id: int
    missing_bookies: tuple[str, ...]
    copies_left: int
    is_closed: bool


class Absences:
    """The time since which each needed bookie is absent. Times are milliseconds of one monotonic clock."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._missed_since: dict[str, int] = {}  # at most one for each bookie that a ledger names (I15)

    def observe(self, now_ms: int, needed: Collection[str], alive: Collection[str]) -> frozenset[str]:
        """Record which bookies are alive at ``now_ms``. Return those that are lost."""
        assert all(since <= now_ms for since in self._missed_since.values()), "the clock never goes back"
        absent = set(needed) - set(alive)
        self._missed_since = {bookie: self._missed_since.get(bookie, now_ms) for bookie in sorted(absent)}
        lost = frozenset(bookie for bookie, since in self._missed_since.items() if now_ms - since >= self._delay_ms)
        assert lost <= absent, "a bookie that is alive is not lost"
        return lost

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when the next absent bookie will be lost, None if no bookie is absent or all of them are lost."""
        due = [since + self._delay_ms for since in self._missed_since.values()]
        return min((at for at in due if at > now_ms), default=None)

    @property
    def absent(self) -> dict[str, int]:
        """Return the bookies absent at the last observation, each with the time since which it is."""
        return dict(self._missed_since)


def named_bookies(ledgers: Iterable[LedgerMetadata]) -> set[str]:
    return {bookie for ledger in ledgers for segment in ledger.segments for bookie in segment.bookies}


def ledgers_on(ledgers: Iterable[LedgerMetadata], lost: Collection[str]) -> list[Finding]:
    """Return a finding for each ledger with a lost bookie in a segment that may hold entries."""
    findings = []
    for ledger in ledgers:
        segments = [segment for segment in ledger.segments if _may_hold_entries(ledger, segment)]
        missing = {bookie for segment in segments for bookie in segment.bookies if bookie in lost}
        if missing:
            findings.append(finding(ledger, missing))
    return findings


def finding(ledger: LedgerMetadata, missing: Collection[str]) -> Finding:
    """Return the finding that ``ledger`` lacks the copies that ``missing`` should hold."""
    counts = [
        _copies_left(ledger, segment, missing) for segment in ledger.segments if _may_hold_entries(ledger, segment)
    ]
    copies_left = min(counts, default=ledger.write_quorum)
    assert 0 <= copies_left <= ledger.write_quorum, "an entry has at most Qw copies"
    return Finding(ledger.ledger_id, tuple(sorted(missing)), copies_left, ledger.is_closed)


class Risks:
    """Counts the ledgers that stop if a machine is lost beside the bookies that are absent already.

    A closed ledger stops if an entry has no copy left; an open one, if too few bookies are left to recover it.

    Args:
        hosts: the machines of the bookies that are alive.
    """

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self.counts: Counter[str] = Counter()  # by machine
        self._hosts = hosts
        self._known: dict[tuple[object, ...], list[str]] = {}  # by what decides it; at most one a ledger (I15)

    def add(self, ledgers: Iterable[LedgerMetadata]) -> None:
        for ledger in ledgers:
            held = tuple(each.bookies for each in ledger.segments if _may_hold_entries(ledger, each))
            key = (held, ledger.is_closed, ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum)
            if (found := self._known.get(key)) is None:
                found = self._known[key] = self._machines_of(ledger)
            self.counts.update(found)

    def _machines_of(self, ledger: LedgerMetadata) -> list[str]:
        named = named_bookies([ledger])
        absent = named - self._hosts.keys()
        needed = 1 if ledger.is_closed else ledger.write_quorum - ledger.ack_quorum + 1
        if finding(ledger, absent).copies_left < needed:
            return []  # it has stopped already
        machines = {self._hosts[name] for name in named - absent}
        gone = {each: absent | {name for name in named if self._hosts.get(name) == each} for each in machines}
        return [each for each in machines if finding(ledger, gone[each]).copies_left < needed]


def segment_views(ledger: LedgerMetadata, missing: Collection[str]) -> list[dict[str, Any]]:
    """Return each segment with its entry range (last_entry_id None: open), bookies and least number of copies."""
    ends: list[int | None] = [segment.first_entry_id - 1 for segment in ledger.segments[1:]]
    ends.append(ledger.last_entry_id if ledger.is_closed else None)
    return [
        {
            "first_entry_id": segment.first_entry_id,
            "last_entry_id": end,
            "bookies": list(segment.bookies),
            "copies_least": _copies_left(ledger, segment, missing),
        }
        for segment, end in zip(ledger.segments, ends, strict=True)
    ]


def _may_hold_entries(ledger: LedgerMetadata, segment: Segment) -> bool:
    return not ledger.is_closed or segment.first_entry_id <= ledger.last_entry_id


def _copies_left(ledger: LedgerMetadata, segment: Segment, missing: Collection[str]) -> int:
    """Return the fewest bookies left in a write set of the segment: entry n is at positions (n + i) mod E, i < Qw."""
    present = [bookie not in missing for bookie in segment.bookies]
    size = ledger.ensemble_size
    return min(sum(present[(start + i) % size] for i in range(ledger.write_quorum)) for start in range(size))
