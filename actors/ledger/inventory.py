"""Comparison of the entries that bookies store with the entries that metadata assigns to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from heliograph.actors.errors import QuorumLostError
from heliograph.actors.ledger.effects import CheckFinished, Effect, Failed, ListEntries, Reply
from heliograph.actors.ledger.schedule import WriteSchedule, is_vacancy
from heliograph.metadata.model import LedgerMetadata, Segment

Run = tuple[int, int]  # first and last entry id


@dataclass(frozen=True, slots=True)
class Fragment:
    """A segment whose end is decided. It is empty when ``last_entry_id`` is below ``first_entry_id``."""

    segment: Segment
    last_entry_id: int

    @property
    def first_entry_id(self) -> int:
        return self.segment.first_entry_id


def decided_fragments(record: LedgerMetadata) -> list[Fragment]:
    """Return the fragments that may be copied: all, but the last one of a ledger whose writer may be alive."""
    ends = [following.first_entry_id - 1 for following in record.segments[1:]]
    if record.is_closed:
        ends = [min(end, record.last_entry_id) for end in [*ends, record.last_entry_id]]
    assert len(ends) == len(record.segments) - (not record.is_closed), "the last segment of an open ledger has no end"
    return [Fragment(segment, end) for segment, end in zip(record.segments, ends, strict=False)]


def missing_runs(schedule: WriteSchedule, position: int, fragment: Fragment, stored: Iterable[Run]) -> list[Run]:
    """Return the runs of a fragment that are striped to a position and not ``stored`` there (sorted, disjoint runs)."""
    first, last = fragment.first_entry_id, fragment.last_entry_id
    gaps = list(_gaps(first, last, stored))
    assert all(first <= start <= end <= last for start, end in gaps), "gaps lie in the fragment"
    if schedule.write_quorum == schedule.ensemble_size:
        return gaps
    runs: list[Run] = []
    for gap_first, gap_last in gaps:
        for entry_id in schedule.entries_at(position, gap_first, gap_last):
            if runs and runs[-1][1] == entry_id - 1:
                runs[-1] = (runs[-1][0], entry_id)
            else:
                runs.append((entry_id, entry_id))
    assert all(one[1] < other[0] for one, other in pairwise(runs)), "runs are sorted and disjoint"
    return runs


def _gaps(first: int, last: int, stored: Iterable[Run]) -> Iterator[Run]:
    at = first
    for run_first, run_last in stored:
        if run_last < at:
            continue
        if run_first > last:
            break
        if run_first > at:
            yield at, run_first - 1
        at = max(at, run_last + 1)
    if at <= last:
        yield at, last


class Inventory:
    """Answers to ListEntries of every bookie that the decided fragments name.

    Each of these bookies is in one of ``waiting``, ``stored`` and ``silent``.
    """

    def __init__(self, record: LedgerMetadata, left_out: Iterable[str] = ()) -> None:
        self.fragments = decided_fragments(record)
        self.silent: set[str] = set()  # their answers allow no conclusion
        named = {bookie_id for fragment in self.fragments for bookie_id in fragment.segment.bookies}
        named.difference_update(left_out)
        self.stored: dict[str, tuple[Run, ...]] = {name: () for name in named if is_vacancy(name)}
        self.waiting = sorted(named.difference(self.stored))

    def on_listed(self, bookie_id: str, reply: Reply, runs: tuple[Run, ...]) -> None:
        """Take the answer of one bookie, or the lack of one."""
        if bookie_id not in self.waiting:
            return
        assert bookie_id not in {*self.stored, *self.silent}, "a bookie is counted once"
        self.waiting.remove(bookie_id)
        if reply is Reply.OK:
            self.stored[bookie_id] = runs
        elif reply is Reply.ABSENT:  # it never had the ledger
            self.stored[bookie_id] = ()
        else:
            self.silent.add(bookie_id)


class CheckCore:
    """State machine of one check, which asks every bookie for the entries it stores.

    It ends in CheckFinished, or in Failed when a bookie did not answer. ``is_partial``: it always ends in
    CheckFinished, which then covers those that answered.
    """

    def __init__(self, record: LedgerMetadata, is_partial: bool = False) -> None:
        self.is_done = False
        self._is_partial = is_partial
        self._record = record
        self._inventory = Inventory(record)

    def start(self, now: int) -> list[Effect]:
        """Ask every bookie of the decided fragments."""
        assert not self.is_done, "a core starts once"
        asked = self._inventory.waiting
        return [ListEntries(self._record.ledger_id, bookie_id) for bookie_id in asked] or self._finish()

    def on_entries_listed(self, bookie_id: str, reply: Reply, runs: tuple[Run, ...], now: int) -> list[Effect]:
        """Take the answer of a bookie, or the lack of one."""
        if self.is_done:
            return []
        self._inventory.on_listed(bookie_id, reply, runs)
        return [] if self._inventory.waiting else self._finish()

    def tick(self, now: int) -> list[Effect]:
        """Do nothing: every request is answered in the end, by the driver if not by the bookie."""
        return []

    def _finish(self) -> list[Effect]:
        assert not self.is_done, "a check ends once"
        assert not self._inventory.waiting, "a check ends with every answer"
        self.is_done = True
        inventory, record = self._inventory, self._record
        if inventory.silent and not self._is_partial:
            names = ", ".join(sorted(inventory.silent))
            return [Failed(QuorumLostError(f"the entries of ledger {record.ledger_id} on {names} are unknown"))]
        schedule = WriteSchedule(record.ensemble_size, record.write_quorum, record.ack_quorum)
        lacking: dict[str, int] = {}
        for fragment in inventory.fragments:
            for position, bookie_id in enumerate(fragment.segment.bookies):
                if bookie_id in inventory.silent:
                    continue
                for first, last in missing_runs(schedule, position, fragment, inventory.stored[bookie_id]):
                    lacking[bookie_id] = lacking.get(bookie_id, 0) + last - first + 1
        return [CheckFinished(tuple(sorted(lacking.items())), tuple(sorted(inventory.silent)))]
