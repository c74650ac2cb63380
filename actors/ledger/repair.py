"""Bringing a ledger back to Qw copies: find what is missing, copy it, and only then say so in metadata (I10).

A live bookie that lacks entries gets them where it is; one that was reported and lacks none is read through, for
copies that it has and cannot serve. A dead one, and one to be emptied, is replaced in each of its segments: all
entries that are striped to its place are copied to the newcomer, each acknowledged as durable, before a
compare-and-set puts the newcomer in its place. Copies are read while earlier ones are being written. The last segment
of a ledger that is not CLOSED is left alone: its caller recovers the ledger first. Any number of repairs may run at
once, on this ledger too.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from actors.errors import EntryDamagedError, NoSuchEntryError
from actors.ledger.effects import (
    CopyDamaged,
    Effect,
    Failed,
    LedgerEntry,
    ListEntries,
    ReadBatch,
    ReadFinished,
    RepairFinished,
    Reply,
    SendCopy,
)
from actors.ledger.ensemble import Chooser, replace_bookie
from actors.ledger.health import BookieHealth
from actors.ledger.inventory import Inventory, Run, missing_runs
from actors.ledger.limits import ReaderLimits, RepairLimits
from actors.ledger.metadata_change import MetadataChange
from actors.ledger.reader import ReadCore
from actors.ledger.schedule import WriteSchedule
from heliograph.errors import HeliographError
from metadata.model import LedgerMetadata, Versioned

BATCH_BYTES_MAX = ReaderLimits().batch_bytes_max
UNCLEAR_READS_MAX = 3  # of one bookie being verified, before it is left for another time
UNREADABLE_ENTRIES_MAX = 100  # passed over in one run: so few bad ones must not keep the others from their copies
REASONS_MAX = 10  # told in the end


class RepairPhase(enum.Enum):
    """Where a repair stands."""

    LISTING = "listing"
    VERIFYING = "verifying"  # reading a reported bookie's own copies
    COPYING = "copying"
    NAMING = "naming"  # the data is durable; metadata is told
    DONE = "done"


@dataclass(slots=True)
class CopyStep:
    """One place of one segment: which runs of entries go to ``new``. ``new`` is ``old`` for a live bookie."""

    first_entry_id: int
    position: int
    old: str
    new: str
    runs: list[Run] = field(default_factory=list)  # what is left to copy
    unverified: list[Run] = field(default_factory=list)  # what ``new`` has, to be read before anything is copied


class RepairCore:
    """State machine of one repair run. It ends in RepairFinished, complete or with the reason why not, or in Failed."""

    def __init__(
        self,
        metadata: Versioned[LedgerMetadata],
        missing_bookies: Collection[str],
        alive: Collection[str],
        chooser: Chooser,
        health: BookieHealth,
        limits: RepairLimits | None = None,
        away_from: Collection[str] = (),
    ) -> None:
        """Repair what can be repaired of a ledger.

        Args:
            missing_bookies: bookies reported to lack copies or to have bad ones. Those not ``alive`` are replaced.
            alive: bookies registered now, read-only ones too.
            away_from: bookies to be replaced, alive or not. Those alive are read from like all others.
        """
        record = metadata.record
        self.ledger_id = record.ledger_id
        self.phase = RepairPhase.LISTING
        self.limits = limits or RepairLimits()
        self.steps: list[CopyStep] = []
        self._chooser = chooser
        self._health = health
        self._schedule = WriteSchedule(record.ensemble_size, record.write_quorum, record.ack_quorum)
        self._metadata = MetadataChange(metadata, self.limits.metadata)
        self._dead = {*missing_bookies, *away_from}.difference(alive)
        self._leaving = self._dead.union(away_from)  # they lose their places, and get no copies
        self._suspects = set(missing_bookies).difference(self._leaving)
        self._inventory = Inventory(record, left_out=self._leaving)
        self._read: ReadCore | None = None
        self._requests = 0
        self._unanswered: dict[int, int] = {}  # entry id -> payload bytes, of the copies under way
        self._unanswered_bytes = 0
        self._is_step_broken = False
        self._unclear_reads = 0
        self._unreadable_entries = 0
        self._reasons: list[str] = []
        self._copied_entries = 0
        self._copied_bytes = 0

    @property
    def is_done(self) -> bool:
        """Whether the run has ended."""
        return self.phase is RepairPhase.DONE

    @property
    def record(self) -> LedgerMetadata:
        """The ledger's record as last seen."""
        return self._metadata.current.record

    # Events

    def start(self, now: int) -> list[Effect]:
        """Ask who has what."""
        for bookie_id in self._dead:
            self._health.note_failure(bookie_id, now)  # no source to begin with
        asked = [ListEntries(self.ledger_id, bookie_id) for bookie_id in self._inventory.waiting]
        return list(asked) if asked else self._plan(now)

    def on_entries_listed(self, bookie_id: str, reply: Reply, runs: tuple[Run, ...], now: int) -> list[Effect]:
        """A bookie answered a ListEntries, or will not."""
        if self.phase is not RepairPhase.LISTING:
            return []
        self._inventory.on_listed(bookie_id, reply, runs)
        return [] if self._inventory.waiting else self._plan(now)

    def on_batch_answer(self, request: int, reply: Reply, entries: Sequence[LedgerEntry], now: int) -> list[Effect]:
        """A bookie answered a ReadBatch, or will not."""
        if self.phase is RepairPhase.VERIFYING and request == self._requests:
            return self._on_verified(reply, entries, now)
        if self._read is None:
            return []
        return self._after_read(self._read.on_batch_answer(request, reply, entries, now), now)

    def on_copy_answer(self, entry_id: int, bookie_id: str, reply: Reply, now: int) -> list[Effect]:
        """A bookie answered a SendCopy, or will not."""
        if entry_id not in self._unanswered or bookie_id != self.steps[0].new:
            return []
        size = self._unanswered.pop(entry_id)
        self._unanswered_bytes -= size
        if reply is Reply.OK:
            self._copied_entries += 1
            self._copied_bytes += size
        elif not self._is_step_broken:
            self._is_step_broken = True
            self._reasons.append(f"bookie {bookie_id} did not take its copies ({reply.value})")
            self._chooser.note_failure(bookie_id, now)
        return self._go_on(now)

    def tick(self, now: int) -> list[Effect]:
        """Time has passed. Call at least every 100 ms."""
        if self.phase is RepairPhase.NAMING:
            return self._metadata.tick(now) + self._after_metadata(now)
        if self._read is not None:
            return self._after_read(self._read.tick(now), now)
        return []

    def on_metadata_written(self, request: int, version: int, now: int) -> list[Effect]:
        """A WriteMetadata landed."""
        return self._metadata.on_written(request, version) + self._after_metadata(now)

    def on_metadata_conflict(self, request: int, now: int) -> list[Effect]:
        """A WriteMetadata met another version; nothing was written by it."""
        return self._metadata.on_conflict(request) + self._after_metadata(now)

    def on_metadata_missing(self, request: int, now: int) -> list[Effect]:
        """The ledger is not in the store."""
        return self._metadata.on_missing(request) + self._after_metadata(now)

    def on_metadata_refused(self, request: int, error: HeliographError, now: int) -> list[Effect]:
        """The request cannot be done, now or later."""
        return self._metadata.on_refused(request, error) + self._after_metadata(now)

    def on_metadata_unknown(self, request: int, now: int) -> list[Effect]:
        """The store did not answer: the request may have happened or not."""
        return self._metadata.on_unknown(request, now) + self._after_metadata(now)

    def on_metadata_read(self, request: int, versioned: Versioned[LedgerMetadata], now: int) -> list[Effect]:
        """The record as it stands."""
        return self._metadata.on_read(request, versioned) + self._after_metadata(now)

    # Steps

    def _plan(self, now: int) -> list[Effect]:
        """Work out the steps: holes of bookies that stay first, then the places of those that leave."""
        inventory = self._inventory
        if inventory.silent:
            self._reasons.append(f"no word from {', '.join(sorted(inventory.silent))}")
        moves: list[CopyStep] = []
        for fragment in inventory.fragments:
            bookies = fragment.segment.bookies
            leaving = [p for p, bookie_id in enumerate(bookies) if bookie_id in self._leaving]
            chosen = self._chooser.choose_replacements(bookies, leaving, now, self._leaving) if leaving else {}
            for position, bookie_id in enumerate(bookies):
                new = chosen.get(position, bookie_id)
                if position in leaving and new == bookie_id:
                    self._reasons.append(f"no bookie can take the place of {bookie_id}")
                elif position in leaving:
                    runs = missing_runs(self._schedule, position, fragment, ())
                    moves.append(CopyStep(fragment.first_entry_id, position, bookie_id, new, runs))
                elif bookie_id in inventory.stored:
                    step = CopyStep(fragment.first_entry_id, position, bookie_id, bookie_id)
                    step.runs = missing_runs(self._schedule, position, fragment, inventory.stored[bookie_id])
                    if not step.runs and bookie_id in self._suspects:
                        step.unverified = missing_runs(self._schedule, position, fragment, ())
                    if step.runs or step.unverified:
                        self.steps.append(step)
        self.steps += moves
        if not self.record.is_closed and not self._leaving.isdisjoint(self.record.last_segment.bookies):
            self._reasons.append("the last segment is open: recover the ledger first")
        return self._go_on(now)

    def _go_on(self, now: int) -> list[Effect]:
        """Go on with the step at hand, finish it, or end."""
        while self.steps:
            step = self.steps[0]
            if self._is_step_broken:
                self._end_read()
                if self._unanswered:
                    return []
                self._is_step_broken = False
                self.steps.pop(0)
            elif step.unverified:
                return self._verify(step)
            elif step.runs or self._read is not None or self._unanswered:
                return self._copy(step, now)
            elif step.old != step.new:
                self.phase = RepairPhase.NAMING  # I10: every copy of this step was acknowledged as durable
                return self._metadata.begin(self._renamed, now) + self._after_metadata(now)
            else:
                self.steps.pop(0)
        self.phase = RepairPhase.DONE
        reason = "; ".join(self._reasons)
        return [RepairFinished(not self._reasons, self._copied_entries, self._copied_bytes, reason)]

    def _verify(self, step: CopyStep) -> list[Effect]:
        self.phase = RepairPhase.VERIFYING
        self._requests += 1
        (first, last), size = step.unverified[0], self.limits.in_flight_bytes_max
        return [ReadBatch(self._requests, self.ledger_id, step.new, first, last, min(size, BATCH_BYTES_MAX))]

    def _on_verified(self, reply: Reply, entries: Sequence[LedgerEntry], now: int) -> list[Effect]:
        step = self.steps[0]
        first, last = step.unverified[0]
        if reply is Reply.OK and entries and entries[0].entry_id == first:
            verified_to = entries[-1].entry_id
        else:
            verified_to = first
            step.runs.append((first, first))
            self._unclear_reads += reply is Reply.UNKNOWN
        step.unverified[:1] = [(verified_to + 1, last)] if verified_to < last else []
        if self._unclear_reads > UNCLEAR_READS_MAX:
            self._is_step_broken = True
            self._unclear_reads = 0
            self._reasons.append(f"the copies of bookie {step.new} cannot be verified now")
        return self._go_on(now)

    def _copy(self, step: CopyStep, now: int) -> list[Effect]:
        """Read on while earlier copies are under way: one half of the window is read, the other is written (I15)."""
        self.phase = RepairPhase.COPYING
        entries_max = max(1, self.limits.in_flight_entries_max // 2)
        bytes_max = max(1, self.limits.in_flight_bytes_max // 2)
        is_full = len(self._unanswered) > self.limits.in_flight_entries_max - entries_max or (
            self._unanswered_bytes > self.limits.in_flight_bytes_max - bytes_max
        )
        if self._read is not None or not step.runs or (is_full and self._unanswered):
            return []
        first, last = step.runs[0]
        limits = ReaderLimits(batch_bytes_max=min(BATCH_BYTES_MAX, bytes_max))
        self._read = ReadCore(
            self.record,
            first,
            min(last, first + entries_max - 1),
            limits.batch_bytes_max,
            self._health,
            limits,
            requests_before=self._requests,
        )
        return self._after_read(self._read.start(now), now)

    def _after_read(self, effects: list[Effect], now: int) -> list[Effect]:
        """Pass the reader's requests on; act on its end."""
        passed: list[Effect] = []
        for effect in effects:
            if isinstance(effect, ReadFinished):
                self._end_read()
                passed += self._send(effect.entries)
                passed += self._go_on(now)
            elif isinstance(effect, Failed):
                self._pass_over(effect.error)
                passed += self._go_on(now)
            elif not isinstance(effect, CopyDamaged):  # what is missing was listed already
                passed.append(effect)
        return passed

    def _pass_over(self, error: HeliographError) -> None:
        """No replica gave the next entry: a bookie that stays gets its others, and nobody moves without it."""
        step = self.steps[0]
        if len(self._reasons) < REASONS_MAX:
            self._reasons.append(str(error))
        is_lost = isinstance(error, NoSuchEntryError | EntryDamagedError)
        if is_lost and step.old == step.new and self._unreadable_entries < UNREADABLE_ENTRIES_MAX:
            self._unreadable_entries += 1
            self._end_read()
            first, last = step.runs[0]
            step.runs[:1] = [(first + 1, last)] if first < last else []
        else:
            self._is_step_broken = True

    def _end_read(self) -> None:
        """Late answers of this read are known by their numbers, and dropped."""
        if self._read is not None:
            self._requests = self._read.requests
            self._read = None

    def _send(self, entries: tuple[LedgerEntry, ...]) -> list[Effect]:
        step = self.steps[0]
        first, last = step.runs[0]
        assert entries[0].entry_id == first, "a read starts where it was asked to"
        copied_to = entries[-1].entry_id
        step.runs[:1] = [(copied_to + 1, last)] if copied_to < last else []
        for entry in entries:
            self._unanswered[entry.entry_id] = len(entry.payload)
            self._unanswered_bytes += len(entry.payload)
        return [SendCopy(self.ledger_id, step.new, entry) for entry in entries]

    def _renamed(self, record: LedgerMetadata) -> LedgerMetadata | None:
        """Put the newcomer in its place, if that place still names the dead bookie (I9)."""
        step = self.steps[0]
        return replace_bookie(record, step.first_entry_id, step.position, step.old, step.new)

    def _after_metadata(self, now: int) -> list[Effect]:
        outcome = self._metadata.outcome
        if outcome is None or self.phase is not RepairPhase.NAMING:
            return []
        self._metadata.outcome = None
        if isinstance(outcome, HeliographError):
            self.phase = RepairPhase.DONE
            return [Failed(outcome)]
        step = self.steps.pop(0)
        segment = next(s for s in outcome.record.segments if s.first_entry_id == step.first_entry_id)
        if segment.bookies[step.position] == step.old:  # another repair gave the newcomer a place of this segment
            self._reasons.append(f"{step.new} holds another place next to {step.old} by now")
        return self._go_on(now)
