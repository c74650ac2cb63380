"""Decides which bookies are lost and which ledgers lack copies. Pure: time is passed in.

A bookie that a ledger names is lost when it has been neither available nor read-only for longer than a delay. A
read-only bookie still serves its copies. The delay starts when this process first misses the bookie, so a new auditor
never calls a bookie lost earlier than its predecessor would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.actors.auditor.placements.index import LedgerPlacement
from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.metadata.model import LedgerMetadata

KNOWN_MAX = 10_000  # sets of bookies whose risks are remembered (I15)


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
        """Record which bookies are alive at ``now_ms``. Return the lost ones."""
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


def named_bookies(ledger: LedgerMetadata) -> set[str]:
    return {bookie for segment in ledger.segments for bookie in segment.bookies}


def ledgers_on(ledgers: Iterable[LedgerPlacement], lost: Collection[str]) -> list[Finding]:
    """Return a finding for each ledger with a lost bookie in a segment that may hold entries."""
    found = [(ledger, [bookie for bookie in ledger.bookies if bookie in lost]) for ledger in ledgers]
    return [finding(ledger, missing) for ledger, missing in found if missing]


def finding(ledger: LedgerPlacement, missing: Collection[str]) -> Finding:
    """Return the finding that ``ledger`` lacks the copies that ``missing`` should hold."""
    counts = [_copies_left(bookies, ledger.write_quorum, missing) for bookies in ledger.held]
    copies_left = min(counts, default=ledger.write_quorum)
    assert 0 <= copies_left <= ledger.write_quorum, "an entry has at most Qw copies"
    return Finding(ledger.ledger_id, tuple(sorted(missing)), copies_left, ledger.is_closed)


def last_copies(ledgers: Iterable[LedgerPlacement], missing: Collection[str]) -> list[int]:
    """Return the ledgers of which an acknowledged entry may be on missing bookies only.

    An entry is acknowledged by Qa of the Qw bookies of its write set, so any Qw - Qa + 1 of them have a copy. A vacancy
    acknowledged none, so all Qw - Qa + 1 others have one: it counts as present.
    """
    return [
        one.ledger_id
        for one in ledgers
        if finding(one, [name for name in one.bookies if name in missing and not is_vacancy(name)]).copies_left
        < one.write_quorum - one.ack_quorum + 1
    ]


class Risks:
    """Counts the ledgers that stop if a machine is lost beside the bookies that are absent already.

    A closed ledger stops if an entry has no copy left; an open one, if too few bookies are left to recover it.

    Args:
        hosts: the machines of the bookies that are alive.

    Attributes:
        last_copies: how many ledgers have entries of which one copy is left, of several.
    """

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self.last_copies = 0
        self.hosts = hosts
        self._counts: Counter[str] = Counter()  # by machine
        self._known: dict[tuple[object, ...], tuple[list[str], bool]] = {}  # by what decides it; at most KNOWN_MAX

    @property
    def counts(self) -> dict[str, int]:
        """How many ledgers the loss of each machine would stop."""
        assert all(count >= 0 for count in self._counts.values()), "what is taken away was counted"
        return {machine: count for machine, count in self._counts.items() if count}

    def add(self, ledgers: Iterable[LedgerPlacement], sign: int = 1) -> None:
        """Count these ledgers, or with ``sign`` -1 no longer."""
        for ledger in ledgers:
            key = (ledger.held, ledger.is_closed, ledger.write_quorum, ledger.ack_quorum)
            if (found := self._known.get(key)) is None:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                found = self._known[key] = self._machines_of(ledger)
            machines, is_last = found
            for machine in machines:
                self._counts[machine] += sign
            self.last_copies += sign * is_last

    def take_over(self, others: Risks) -> None:
        """Add what others have counted."""
        self._counts.update(others._counts)
        self.last_copies += others.last_copies

    def _machines_of(self, ledger: LedgerPlacement) -> tuple[list[str], bool]:
        """Return the machines whose loss stops a ledger, and whether it has one copy left of some entries."""
        named = ledger.bookies
        absent = named - self.hosts.keys()
        needed = 1 if ledger.is_closed else ledger.write_quorum - ledger.ack_quorum + 1
        copies_left = finding(ledger, absent).copies_left
        is_last = copies_left == 1 < ledger.write_quorum
        if copies_left < needed:
            return [], is_last  # it has stopped already
        machines = {self.hosts[name] for name in named - absent}
        gone = {each: absent | {name for name in named if self.hosts.get(name) == each} for each in machines}
        return [each for each in machines if finding(ledger, gone[each]).copies_left < needed], is_last


def segment_views(ledger: LedgerMetadata, missing: Collection[str]) -> list[dict[str, Any]]:
    """Return each segment with its entry range (last_entry_id None: open), bookies and least number of copies."""
    ends: list[int | None] = [segment.first_entry_id - 1 for segment in ledger.segments[1:]]
    ends.append(ledger.last_entry_id if ledger.is_closed else None)
    return [
        {
            "first_entry_id": segment.first_entry_id,
            "last_entry_id": end,
            "bookies": list(segment.bookies),
            "copies_least": _copies_left(segment.bookies, ledger.write_quorum, missing),
        }
        for segment, end in zip(ledger.segments, ends, strict=True)
    ]


def _copies_left(bookies: Sequence[str], write_quorum: int, missing: Collection[str]) -> int:
    """Return the fewest bookies left in a write set of the segment: entry n is at positions (n + i) mod E, i < Qw."""
    present = [bookie not in missing for bookie in bookies]
    size = len(present)
    return min(sum(present[(start + i) % size] for i in range(write_quorum)) for start in range(size))
