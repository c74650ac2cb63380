"""Reads of confirmed entries, in batches from one replica. If it is silent or has no good copy, the next one is asked.

A read never goes beyond the LAC of an open ledger or the last entry of a closed one (I3). A damaged copy is never
returned: it is reported for repair, and the next replica is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.actors.errors import EntryDamagedError, LedgerError, NoSuchEntryError, QuorumLostError
from heliograph.actors.ledger.effects import CopyDamaged, Effect, Failed, LedgerEntry, ReadBatch, ReadFinished, Reply
from heliograph.actors.ledger.limits import ReaderLimits
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.schedule import is_vacancy, schedule_of
from heliograph.base.errors import HeliographError
from heliograph.metadata.model import LedgerMetadata


def check_range(record: LedgerMetadata, first: int, last: int, last_add_confirmed: int) -> None:
    """Raise NoSuchEntryError unless ``first .. last`` are entries that may be read.

    Args:
        last_add_confirmed: the reader's LAC. It is ignored when the ledger is CLOSED.
    """
    end = record.last_entry_id if record.is_closed else last_add_confirmed
    if not 0 <= first <= last:
        raise NoSuchEntryError(
            f"entries {first} to {last} are not a range", field="first,last", limit="0 <= first <= last"
        )
    if last > end:  # I3
        raise NoSuchEntryError(
            f"entry {last} of ledger {record.ledger_id} is beyond the last readable entry {end}: "
            + ("the ledger is closed" if record.is_closed else "wait for last_add_confirmed to pass it, or recover it"),
            field="last",
            limit=f"at most {end}",
        )


class _Run:
    """Consecutive entries requested from one bookie, and the other bookies that hold the first of them."""

    def __init__(self, first: int, candidates: list[tuple[str, int]], delay_ms: int) -> None:
        self.first = first
        self.candidates = candidates  # (bookie, last entry it may be asked for), in the order to ask
        self.asked = 0  # of the candidates: asked <= len(candidates)
        self.outstanding: dict[int, str] = {}  # request -> bookie
        self.entries: tuple[LedgerEntry, ...] | None = None
        self.replies: list[Reply] = []
        self.ask_next_at = 0
        self.delay_ms = delay_ms

    @property
    def is_over(self) -> bool:
        return self.entries is not None or (self.asked == len(self.candidates) and not self.outstanding)

    @property
    def last_planned(self) -> int:
        """Return the last entry that the reader requests from the first candidate."""
        return self.candidates[0][1]


class ReadCore:
    """State machine of one read. It ends in ReadFinished with at least one entry, or in Failed."""

    def __init__(
        self,
        record: LedgerMetadata,
        first: int,
        last: int,
        max_bytes: int,
        health: BookieHealth,
        limits: ReaderLimits | None = None,
        requests_before: int = 0,
        *,
        heads: bool = False,
    ) -> None:
        """Read ``first .. last``, a range that ``check_range`` allowed, up to about ``max_bytes`` of payload.

        Args:
            requests_before: number of the last request of an earlier read, whose late answers may still come here.
            heads: the beginnings of payloads are enough.
        """
        assert 0 <= first <= last, "a read starts with a checked range"  # I3
        self.record = record
        self.is_done = False
        self.limits = limits or ReaderLimits()
        self._first = first
        self._last = last
        self._max_bytes = min(max_bytes, self.limits.batch_bytes_max)
        self._heads = heads
        self._health = health
        self._schedule = schedule_of(record.ensemble_size, record.write_quorum, record.ack_quorum)
        self._runs: list[_Run] = []
        self._owners: dict[int, _Run] = {}
        self.requests = requests_before

    def start(self, now: int) -> list[Effect]:
        """Divide the range into runs, and ask the best replica of each."""
        assert not self._runs, "a core starts once"
        entry_id = self._first
        while entry_id <= self._last and len(self._runs) < self.limits.runs_max:
            run = _Run(entry_id, self._candidates(entry_id, now), self.limits.speculative_ms)
            self._runs.append(run)
            entry_id = run.last_planned + 1
        effects: list[Effect] = []
        for run in self._runs:
            effects += self._ask(run, now)
        return effects

    def on_batch_answer(self, request: int, reply: Reply, entries: Sequence[LedgerEntry], now: int) -> list[Effect]:
        """Take the answer of a bookie to a ReadBatch, or the lack of one."""
        run = self._owners.pop(request, None)
        if run is None or self.is_done:
            return []
        bookie_id = run.outstanding.pop(request)
        if run.entries is not None:
            return []
        effects: list[Effect] = []
        if reply is Reply.OK and entries and entries[0].entry_id == run.first:
            self._health.note_success(bookie_id)
            run.entries = tuple(entries)
        else:
            effects = self._on_bad(run, bookie_id, reply, now)
            if not run.outstanding:
                effects += self._ask(run, now)
        return effects + self._finish()

    def tick(self, now: int) -> list[Effect]:
        """Ask the next replica if the asked ones have been silent for too long."""
        if self.is_done:
            return []
        effects: list[Effect] = []
        for run in self._runs:
            if not run.is_over and now >= run.ask_next_at and run.asked < len(run.candidates):
                for bookie_id in run.outstanding.values():
                    self._health.note_slow(bookie_id, now)
                effects += self._ask(run, now)
        return effects

    def _candidates(self, entry_id: int, now: int) -> list[tuple[str, int]]:
        """Return the bookies that hold an entry, in the order to ask, each with the last entry of the run it holds."""
        record = self.record
        segment = record.segment_of(entry_id)
        following = [s.first_entry_id for s in record.segments if s.first_entry_id > entry_id]
        end = min([self._last, *(first - 1 for first in following[:1])])
        schedule = self._schedule
        # All hold every entry: their order is the same for each, so that one bookie gets all reads of a ledger and
        # reads ahead for them.
        is_striped = schedule.write_quorum < schedule.ensemble_size
        positions = schedule.positions(entry_id) if is_striped else range(schedule.ensemble_size)
        position_of = {segment.bookies[p]: p for p in positions if not is_vacancy(segment.bookies[p])}
        ordered = self._health.order(position_of, record.ledger_id, now)
        return [(bookie, schedule.last_of_run(position_of[bookie], entry_id, end)) for bookie in ordered]

    def _ask(self, run: _Run, now: int) -> list[Effect]:
        if run.asked == len(run.candidates):
            return []
        assert run.entries is None, "a run that has its entries asks no bookie"
        bookie_id, last = run.candidates[run.asked]
        run.asked += 1
        run.ask_next_at = now + run.delay_ms
        run.delay_ms *= 2
        self.requests += 1
        run.outstanding[self.requests] = bookie_id
        self._owners[self.requests] = run
        ledger_id = self.record.ledger_id
        return [ReadBatch(self.requests, ledger_id, bookie_id, run.first, last, self._max_bytes, self._heads)]

    def _on_bad(self, run: _Run, bookie_id: str, reply: Reply, now: int) -> list[Effect]:
        """Note why this replica did not serve. A copy that is missing or damaged is a task for repair."""
        if reply is Reply.OK:
            reply = Reply.DAMAGED  # it answered with another entry than the one requested
        run.replies.append(reply)
        if reply in (Reply.DAMAGED, Reply.ABSENT):
            return [CopyDamaged(self.record.ledger_id, run.first, bookie_id, is_missing=reply is Reply.ABSENT)]
        self._health.note_failure(bookie_id, now)
        return []

    def _finish(self) -> list[Effect]:
        """End when the first run failed, or when every run is over."""
        assert not self.is_done, "a read ends once"
        head = self._runs[0]
        if head.is_over and head.entries is None:
            self.is_done = True
            return [Failed(self._why(head))]
        if not all(run.is_over for run in self._runs):
            return []
        self.is_done = True
        entries = self._prefix()
        assert entries, "the first run has its entries"
        assert entries[-1].entry_id <= self._last, "no entry beyond the range is returned"  # I3
        return [ReadFinished(entries)]

    def _prefix(self) -> tuple[LedgerEntry, ...]:
        """Return the consecutive entries from the first on: at least one, at most about ``max_bytes``."""
        found: list[LedgerEntry] = []
        size = 0
        for run in self._runs:
            if run.first != self._first + len(found) or run.entries is None:
                break
            for entry in run.entries:
                size += len(entry.payload)
                if entry.entry_id > self._last or (found and size > self._max_bytes):
                    return tuple(found)
                assert entry.entry_id == self._first + len(found), "a batch has no gaps"
                found.append(entry)
        return tuple(found)

    def _why(self, run: _Run) -> HeliographError:
        name = f"entry {run.first} of ledger {self.record.ledger_id}"
        if all(reply is Reply.ABSENT for reply in run.replies):
            return NoSuchEntryError(f"no replica has {name}: the ledger was deleted, or its data is lost")
        if Reply.UNAUTHORIZED in run.replies:
            return LedgerError(f"the bookies refuse this client's credentials for {name}")
        if all(reply in (Reply.ABSENT, Reply.DAMAGED) for reply in run.replies):
            return EntryDamagedError(f"every copy of {name} is damaged or missing")
        return QuorumLostError(f"no replica could serve {name} now")
