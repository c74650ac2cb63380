"""Comparing what bookies store with what metadata says they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from actors.errors import QuorumLostError
from actors.ledger.effects import CheckFinished, Effect, Failed, ListEntries, Reply
from actors.ledger.schedule import WriteSchedule
from metadata.model import LedgerMetadata, Segment

Run = tuple[int, int]  # first and last entry id


@dataclass(frozen=True, slots=True)
class Fragment:
    """A segment whose end is decided. Empty when ``last_entry_id`` is below its first one."""

    segment: Segment
    last_entry_id: int

    @property
    def first_entry_id(self) -> int:
        """The segment's key."""
        return self.segment.first_entry_id


def decided_fragments(record: LedgerMetadata) -> list[Fragment]:
    """The fragments that may be copied: all of a CLOSED ledger, else all but the last, whose writer may be alive."""
    ends = [following.first_entry_id - 1 for following in record.segments[1:]]
    if record.is_closed:
        ends = [min(end, record.last_entry_id) for end in [*ends, record.last_entry_id]]
    return [Fragment(segment, end) for segment, end in zip(record.segments, ends, strict=False)]


def missing_runs(schedule: WriteSchedule, position: int, fragment: Fragment, stored: Iterable[Run]) -> list[Run]:
    """Runs of entries striped to a position of a fragment and not ``stored`` (sorted, disjoint runs) there."""
    first, last = fragment.first_entry_id, fragment.last_entry_id
    gaps = list(_gaps(first, last, stored))
    if schedule.write_quorum == schedule.ensemble_size:
        return gaps
    runs: list[Run] = []
    for gap_first, gap_last in gaps:
        for entry_id in schedule.entries_at(position, gap_first, gap_last):
            if runs and runs[-1][1] == entry_id - 1:
                runs[-1] = (runs[-1][0], entry_id)
            else:
                runs.append((entry_id, entry_id))
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
    """Answers to ListEntries, from every bookie that the decided fragments name."""

    def __init__(self, record: LedgerMetadata, left_out: Iterable[str] = ()) -> None:
        self.fragments = decided_fragments(record)
        self.stored: dict[str, tuple[Run, ...]] = {}
        self.silent: set[str] = set()  # they answered nothing that anything follows from
        named = {bookie_id for fragment in self.fragments for bookie_id in fragment.segment.bookies}
        self.waiting = sorted(named.difference(left_out))

    def on_listed(self, bookie_id: str, reply: Reply, runs: tuple[Run, ...]) -> None:
        """One bookie answered, or will not."""
        if bookie_id not in self.waiting:
            return
        self.waiting.remove(bookie_id)
        if reply is Reply.OK:
            self.stored[bookie_id] = runs
        elif reply is Reply.ABSENT:  # it never had the ledger
            self.stored[bookie_id] = ()
        else:
            self.silent.add(bookie_id)


class CheckCore:
    """Ask every bookie what it has. Ends in CheckFinished, or in Failed when one of them did not say.

    ``is_partial``: what some bookies say is wanted without the others; then it ends in CheckFinished always.
    """

    def __init__(self, record: LedgerMetadata, is_partial: bool = False) -> None:
        self.is_done = False
        self._is_partial = is_partial
        self._record = record
        self._inventory = Inventory(record)

    def start(self, now: int) -> list[Effect]:
        """Ask them all."""
        asked = self._inventory.waiting
        return [ListEntries(self._record.ledger_id, bookie_id) for bookie_id in asked] or self._finish()

    def on_entries_listed(self, bookie_id: str, reply: Reply, runs: tuple[Run, ...], now: int) -> list[Effect]:
        """A bookie answered, or will not."""
        if self.is_done:
            return []
        self._inventory.on_listed(bookie_id, reply, runs)
        return [] if self._inventory.waiting else self._finish()

    def tick(self, now: int) -> list[Effect]:
        """Nothing is done by time alone: every request is answered in the end."""
        return []

    def _finish(self) -> list[Effect]:
        self.is_done = True
        inventory, record = self._inventory, self._record
        if inventory.silent and not self._is_partial:
            names = ", ".join(sorted(inventory.silent))
            return [Failed(QuorumLostError(f"what {names} hold of ledger {record.ledger_id} cannot be told now"))]
        schedule = WriteSchedule(record.ensemble_size, record.write_quorum, record.ack_quorum)
        lacking: dict[str, int] = {}
        for fragment in inventory.fragments:
            for position, bookie_id in enumerate(fragment.segment.bookies):
                if bookie_id in inventory.silent:
                    continue
                for first, last in missing_runs(schedule, position, fragment, inventory.stored[bookie_id]):
                    lacking[bookie_id] = lacking.get(bookie_id, 0) + last - first + 1
        return [CheckFinished(tuple(sorted(lacking.items())), tuple(sorted(inventory.silent)))]
