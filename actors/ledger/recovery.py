"""Recovery of a ledger: fence it, find its end, bring the entries there to an ack quorum, close it.

Each step rests on the one before:
1. Mark the ledger IN_RECOVERY in metadata. The segments as of then are frozen, and all reads use them.
2. Send fencing LAC reads to the last segment, until every possible ack quorum has a fenced bookie.
3. Send fencing reads for the entries after that LAC, to all Qw replicas, and decide on each entry in order (I7).
4. Add the entries that exist again, with the LAC of step 2 and never a greater one, so that a recovery that loses
   leaves no bookie with a LAC above the ledger's end (I3).
5. Mark the ledger CLOSED in metadata, together with the segments that step 4 needed. They are private until then: a
   recovery that starts over must not read from bookies that never had the entries (I8).

Any number of recoveries may run at once. Each finds every confirmed entry, and the first to close decides (I5).
"""

from __future__ import annotations

from dataclasses import replace

from heliograph.actors.errors import LedgerError, LedgerRecoveryError
from heliograph.actors.ledger.effects import (
    Effect,
    Failed,
    LedgerEntry,
    ReadEntry,
    ReadLac,
    RecoveryFinished,
    Reply,
)
from heliograph.actors.ledger.limits import RecoveryLimits
from heliograph.actors.ledger.metadata_change import MetadataChange, MetadataCore
from heliograph.actors.ledger.pipeline import AddPipeline
from heliograph.actors.ledger.placement.ensemble import Chooser, merge_segments
from heliograph.actors.ledger.schedule import occupied, positions_of, schedule_of, vacancies_of
from heliograph.actors.ledger.state import RECOVERY_LIFECYCLE, RecoveryPhase
from heliograph.actors.ledger.verdict import EntryVerdict, LacQuorum, Verdict
from heliograph.base.errors import HeliographError
from heliograph.metadata.model import NO_ENTRY, LedgerMetadata, LedgerState, Versioned


class RecoveryCore(MetadataCore):
    """State machine of one recovery. It ends in RecoveryFinished, or in Failed with the ledger left IN_RECOVERY."""

    def __init__(
        self, metadata: Versioned[LedgerMetadata], chooser: Chooser, limits: RecoveryLimits | None = None
    ) -> None:
        record = metadata.record
        self.ledger_id = record.ledger_id
        self.phase = RecoveryPhase.MARKING
        self.limits = limits or RecoveryLimits()
        self._chooser = chooser
        self._schedule = schedule_of(record.ensemble_size, record.write_quorum, record.ack_quorum)
        self._metadata = MetadataChange(metadata, self.limits.metadata)
        self._frozen = record
        self._lacs = LacQuorum(self._schedule)
        self._pipeline: AddPipeline | None = None
        self._own_segments: dict[
            int, tuple[str, ...]
        ] = {}  # first entry id -> bookies; private until the closing write
        self._verdicts: dict[int, EntryVerdict] = {}  # entries being read, in order
        self._found = NO_ENTRY  # the LAC that the fencing reads found
        self._next_read = 0
        self._has_end = False
        self._last: LedgerEntry | None = None  # of those that were read or found
        self._measure: EntryVerdict | None = None
        self._final_length = 0
        self._deadline = 0

    @property
    def last_add_confirmed(self) -> int:
        """Return the last entry known to be on an ack quorum, NO_ENTRY while the ledger is being fenced."""
        return NO_ENTRY if self._pipeline is None else self._pipeline.last_add_confirmed

    @property
    def is_done(self) -> bool:
        return self.phase in (RecoveryPhase.FINISHED, RecoveryPhase.FAILED)

    # -- events

    def start(self, now: int) -> list[Effect]:
        """Mark the ledger IN_RECOVERY. On a CLOSED ledger the recovery ends at once."""
        self._deadline = now + self.limits.progress_timeout_ms
        return self._metadata.begin(_marked, now) + self._after_metadata(now)

    def on_lac_answer(
        self, position: int, reply: Reply, last_add_confirmed: int, entry: LedgerEntry | None, now: int
    ) -> list[Effect]:
        """Take the answer of a bookie to the fencing ReadLac, or the lack of one."""
        if self.phase is not RecoveryPhase.FENCING:
            return []
        if reply is Reply.UNAUTHORIZED:
            return self._fail(LedgerError(f"a bookie of ledger {self.ledger_id} refuses this client's credentials"))
        self._lacs.on_answer(position, reply, last_add_confirmed, entry)
        if self._lacs.is_covered:
            return self._begin_copying(now)
        if self._lacs.is_exhausted:
            return self._fail(LedgerRecoveryError(f"too few bookies of ledger {self.ledger_id} could be fenced"))
        return []

    def on_entry_answer(
        self, entry_id: int, position: int, reply: Reply, entry: LedgerEntry | None, now: int
    ) -> list[Effect]:
        """Take the answer of a bookie to a ReadEntry, or the lack of one."""
        if self.phase is RecoveryPhase.MEASURING:
            return self._on_measured(entry_id, position, reply, entry, now)
        verdict = self._verdicts.get(entry_id)
        if self.phase is not RecoveryPhase.COPYING or verdict is None:
            return []
        verdict.on_answer(position, reply, entry)
        return self._judge(now)

    def on_add_answer(self, entry_id: int, position: int, epoch: int, reply: Reply, now: int) -> list[Effect]:
        """Take the answer of a bookie to a SendAdd of ``epoch``, or the lack of one."""
        pipeline = self._pipeline
        if self.phase is not RecoveryPhase.COPYING or pipeline is None:
            return []
        if reply is Reply.OK:
            pipeline.on_ack(entry_id, position, epoch)
            return self._advance(now)
        if not pipeline.awaits(entry_id, position, epoch):
            return []
        pipeline.on_failure(entry_id, position)
        if not pipeline.failed >> position & 1:
            pipeline.mark_failed(position)
            self._chooser.note_failure(pipeline.bookies[position], now)
        return self._replace_failed(pipeline, now) + self._advance(now)

    def tick(self, now: int) -> list[Effect]:
        """Act on the passing of time. Call at least every 100 ms."""
        if self.is_done:
            return []
        if self._metadata.is_active:
            return self._metadata.tick(now) + self._after_metadata(now)
        if now >= self._deadline:
            return self._fail(LedgerRecoveryError(f"recovery of ledger {self.ledger_id} made no progress in time"))
        return []

    # -- steps

    def _after_metadata(self, now: int) -> list[Effect]:
        outcome = self._metadata.outcome
        if outcome is None or self.is_done:
            return []
        self._metadata.outcome = None
        self._deadline = now + self.limits.progress_timeout_ms
        if isinstance(outcome, HeliographError):
            return self._fail(outcome)
        if outcome.record.is_closed:
            self.phase = RECOVERY_LIFECYCLE.move(self.phase, RecoveryPhase.FINISHED)
            last, end = self._last, outcome.record.last_entry_id
            is_known = last is not None and last.entry_id == end  # another recovery may have found a later end
            return [RecoveryFinished(outcome.record, outcome.version, last if is_known else None)]
        assert self.phase is RecoveryPhase.MARKING, "a closing write leaves the ledger CLOSED"
        self._frozen = outcome.record
        bookies = self._frozen.last_segment.bookies
        self._lacs = LacQuorum(self._schedule, vacancies_of(bookies))
        self.phase = RECOVERY_LIFECYCLE.move(self.phase, RecoveryPhase.FENCING)
        return [ReadLac(self.ledger_id, occupied(enumerate(bookies)), fence=True)]

    def _begin_copying(self, now: int) -> list[Effect]:
        segment = self._frozen.last_segment
        # A segment starts right after what its writer had confirmed, even if its bookies know of no entry.
        found = max(self._lacs.last_add_confirmed, segment.first_entry_id - 1)
        self._found = found
        self._pipeline = AddPipeline(
            self.ledger_id, self._schedule, segment.bookies, last_entry_id=found, length=0, recovery=True
        )
        self._next_read = found + 1
        self.phase = RECOVERY_LIFECYCLE.move(self.phase, RecoveryPhase.COPYING)
        return self._advance(now)

    def _read_ahead(self, pipeline: AddPipeline) -> list[Effect]:
        effects: list[Effect] = []
        limits = self.limits
        reads_max = min(
            limits.reads_max, 2 + pipeline.last_add_pushed - self._found
        )  # few at first: most recoveries find little
        while (
            not self._has_end
            and len(self._verdicts) < reads_max
            and len(self._verdicts) + pipeline.entries_held < limits.in_flight_entries_max
            and pipeline.bytes_held < limits.in_flight_bytes_max
        ):
            entry_id, self._next_read = self._next_read, self._next_read + 1
            self._verdicts[entry_id] = self._new_verdict(entry_id)
            effects.append(self._fencing_read(entry_id))
        return effects

    def _fencing_read(self, entry_id: int) -> ReadEntry:
        """Return a read that fences: a bookie that says "absent" to it refuses a late write of the entry."""  # I7
        bookies = self._frozen.segment_of(entry_id).bookies
        targets = occupied((position, bookies[position]) for position in self._schedule.positions(entry_id))
        return ReadEntry(self.ledger_id, entry_id, targets, fence=True)

    def _new_verdict(self, entry_id: int) -> EntryVerdict:
        return EntryVerdict(self._schedule, entry_id, vacancies_of(self._frozen.segment_of(entry_id).bookies))

    def _judge(self, now: int) -> list[Effect]:
        """Act on the verdicts in entry order. The first absent entry is the end, whatever later reads find."""
        pipeline = self._pipeline
        assert pipeline is not None, "entries are read after the fencing"
        effects: list[Effect] = []
        while self._verdicts:
            entry_id, head = next(iter(self._verdicts.items()))
            verdict = head.verdict
            if verdict is Verdict.PENDING:
                break
            if verdict is Verdict.UNKNOWN:
                return self._fail(LedgerRecoveryError(f"entry {entry_id} of ledger {self.ledger_id} cannot be decided"))
            if verdict is Verdict.ABSENT:
                self._has_end = True
                self._verdicts.clear()
                break
            del self._verdicts[entry_id]
            assert head.entry is not None, "a present entry has a copy"
            assert entry_id == pipeline.last_add_pushed + 1, "re-adds are consecutive"
            self._last = head.entry
            effects.append(pipeline.add_entry(head.entry.payload, head.entry.length, now))
        return effects + self._advance(now)

    def _replace_failed(self, pipeline: AddPipeline, now: int) -> list[Effect]:
        """Replace failed bookies at once: the new segment stays private until the closing write."""
        chosen = self._chooser.choose_replacements(pipeline.bookies, positions_of(pipeline.failed), now)
        if not chosen:
            return []
        bookies = list(pipeline.bookies)
        for position, bookie_id in chosen.items():
            bookies[position] = bookie_id
        last_key = max(self._own_segments, default=self._frozen.last_segment.first_entry_id)
        first_entry_id = pipeline.last_add_confirmed + 1
        assert first_entry_id >= last_key, "no segment starts at or below the LAC"  # I8
        self._own_segments[first_entry_id] = tuple(bookies)
        return pipeline.install(bookies, chosen)

    def _advance(self, now: int) -> list[Effect]:
        """Confirm entries, read on, and close the ledger when every entry up to the end is on an ack quorum."""
        pipeline = self._pipeline
        assert pipeline is not None, "nothing advances before the fencing"
        if pipeline.confirm():  # I2
            self._deadline = now + self.limits.progress_timeout_ms
        if pipeline.is_head_broken():
            return self._fail(LedgerRecoveryError(f"too few bookies to write the end of ledger {self.ledger_id} back"))
        if not self._has_end:
            return [*pipeline.take_holes(), *self._read_ahead(pipeline)]
        if pipeline.has_unconfirmed:
            return pipeline.take_holes()
        return pipeline.take_holes() + self._measure_end(pipeline, now)

    def _measure_end(self, pipeline: AddPipeline, now: int) -> list[Effect]:
        """Find the length of the last entry, then close the ledger."""
        last = pipeline.last_add_confirmed
        known = self._lacs.entries.get(last)
        if last > self._found or last == NO_ENTRY:
            return self._begin_closing(pipeline.confirmed_length, now)
        if known is not None:
            self._last = known
            return self._begin_closing(known.length, now)
        self.phase = RECOVERY_LIFECYCLE.move(self.phase, RecoveryPhase.MEASURING)
        self._measure = self._new_verdict(last)
        return [self._fencing_read(last)]

    def _on_measured(
        self, entry_id: int, position: int, reply: Reply, entry: LedgerEntry | None, now: int
    ) -> list[Effect]:
        if self._measure is None or entry_id != self.last_add_confirmed:
            return []
        if reply is Reply.OK and entry is not None:
            self._last = entry
            return self._begin_closing(entry.length, now)
        self._measure.on_answer(position, reply, entry)
        if self._measure.is_exhausted:
            return self._fail(
                LedgerRecoveryError(f"the confirmed entry {entry_id} of {self.ledger_id} has no copy left")
            )
        return []

    def _begin_closing(self, length: int, now: int) -> list[Effect]:
        self.phase = RECOVERY_LIFECYCLE.move(self.phase, RecoveryPhase.CLOSING)
        self._final_length = length
        return self._metadata.begin(self._closed, now) + self._after_metadata(now)

    def _closed(self, record: LedgerMetadata) -> LedgerMetadata | None:
        """Return the CLOSED record, or None for a ledger that another recovery closed already."""
        if record.is_closed:  # I5
            return None
        if record.state is not LedgerState.IN_RECOVERY:
            raise LedgerRecoveryError(f"ledger {self.ledger_id} is {record.state.value} during its recovery")
        last = self.last_add_confirmed
        used = {first: bookies for first, bookies in self._own_segments.items() if first <= last}
        return replace(
            record,
            state=LedgerState.CLOSED,
            segments=merge_segments(record, used),
            last_entry_id=last,
            length=self._final_length,
        )

    def _fail(self, error: HeliographError) -> list[Effect]:
        self.phase = RECOVERY_LIFECYCLE.move(self.phase, RecoveryPhase.FAILED)
        self._metadata.abandon()
        self._verdicts.clear()
        if self._pipeline is not None:
            self._pipeline.drain()
        return [Failed(error)]


def _marked(record: LedgerMetadata) -> LedgerMetadata | None:
    """Return the record IN_RECOVERY, or None if it is so already: recoveries do not disturb each other."""
    if record.state is LedgerState.OPEN:  # I9
        return replace(record, state=LedgerState.IN_RECOVERY)
    return None
