"""Repair of a ledger: find the missing copies, make them, and only then name their bookies in metadata (I10).

- A live bookie that lacks entries gets them. If it was reported and lacks none, its copies are read, to find those that
  it cannot serve.
- A dead bookie, and one to be emptied, is replaced in each of its segments. All entries that are striped to its
  position are copied to the new bookie, each acknowledged as durable, before a compare-and-set names the new bookie.

Copies are read while earlier ones are being written; ``window.py`` says how many at once. The last segment of a ledger
that is not CLOSED is left out: the caller recovers the ledger first. Any number of repairs may run at once, also on one
ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from heliograph.actors.errors import EntryDamagedError, NoSuchEntryError
from heliograph.actors.ledger.effects import (
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
from heliograph.actors.ledger.inventory import Fragment, Inventory, Run, missing_runs
from heliograph.actors.ledger.limits import ReaderLimits, RepairLimits
from heliograph.actors.ledger.metadata_change import MetadataChange, MetadataCore
from heliograph.actors.ledger.placement.ensemble import Chooser, replace_bookie
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.reader import ReadCore
from heliograph.actors.ledger.repair.window import RepairWindow
from heliograph.actors.ledger.schedule import is_vacancy, schedule_of
from heliograph.actors.ledger.state import REPAIR_LIFECYCLE, RepairPhase
from heliograph.base.errors import HeliographError
from heliograph.metadata.model import LedgerMetadata, Versioned

BATCH_BYTES_MAX = ReaderLimits().batch_bytes_max
UNCLEAR_READS_MAX = 3  # reads without a clear answer, after which a bookie is not verified in this run
UNREADABLE_ENTRIES_MAX = 100  # skipped in one run: a few bad entries must not keep the others from their copies
REASONS_MAX = 10  # errors of reads that are reported in the end


@dataclass(slots=True)
class CopyStep:
    """The runs of entries of one position of one segment that ``new`` gets. ``new`` is ``old`` for a live bookie."""

    first_entry_id: int
    position: int
    old: str
    new: str
    runs: list[Run] = field(default_factory=list)  # what is left to copy
    unverified: list[Run] = field(default_factory=list)  # copies that ``new`` has; they are read before any is made


class RepairCore(MetadataCore):
    """State machine of one repair. It ends in RepairFinished, complete or with the reason why not, or in Failed."""

    def __init__(
        self,
        metadata: Versioned[LedgerMetadata],
        missing_bookies: Collection[str],
        alive: Collection[str],
        chooser: Chooser,
        health: BookieHealth,
        limits: RepairLimits | None = None,
        away_from: Collection[str] = (),
        damaged: Collection[str] = (),
        window: RepairWindow | None = None,
    ) -> None:
        """Make the missing copies of a ledger.

        Args:
            missing_bookies: bookies reported to lack copies or to have bad ones. Those not ``alive`` are replaced.
            alive: bookies that are registered now, also read-only ones.
            away_from: bookies to be replaced, alive or not. Those alive serve reads like all others.
            damaged: bookies reported to have copies with a wrong checksum. All their copies are read, also if others
                are missing.
            window: of all repairs of the process; None: this one has its own.
        """
        record = metadata.record
        self.ledger_id = record.ledger_id
        self.phase = RepairPhase.LISTING
        self.limits = limits or RepairLimits()
        self._window = window or RepairWindow(self.limits)
        self.steps: list[CopyStep] = []
        self._chooser = chooser
        self._health = health
        self._schedule = schedule_of(record.ensemble_size, record.write_quorum, record.ack_quorum)
        self._metadata = MetadataChange(metadata, self.limits.metadata)
        vacancies = {name for segment in record.segments for name in segment.bookies if is_vacancy(name)}
        self._dead = {*missing_bookies, *away_from, *vacancies}.difference(alive)
        self._leaving = self._dead.union(away_from)  # they are replaced and get no copies
        self._suspects = set(missing_bookies).difference(self._leaving)
        self._damaged = set(damaged).difference(self._leaving)
        self._inventory = Inventory(record, left_out=self._leaving)
        self._read: ReadCore | None = None
        self._requests = 0
        self._unanswered: dict[int, tuple[int, int]] = {}  # entry id -> payload bytes, ms when its copy was sent
        self._unanswered_bytes = 0  # of all of them together
        self._is_step_broken = False
        self._unclear_reads = 0
        self._unreadable_entries = 0
        self._lost: set[int] = set()  # at most one more for each step than UNREADABLE_ENTRIES_MAX (I15)
        self._paused_until = 0  # ms; the rate limit allows no read before
        self._reasons: list[str] = []
        self._needs_bookies = False  # a position found no bookie
        self.copied_entries = 0
        self.copied_bytes = 0

    @property
    def is_done(self) -> bool:
        return self.phase is RepairPhase.DONE

    @property
    def record(self) -> LedgerMetadata:
        return self._metadata.current.record

    # -- events

    def start(self, now: int) -> list[Effect]:
        """Ask the bookies for the entries that they store."""
        assert self.phase is RepairPhase.LISTING, "a core starts once"
        for bookie_id in self._dead:
            self._health.note_failure(bookie_id, now)  # reads do not begin with it
        asked = [ListEntries(self.ledger_id, bookie_id) for bookie_id in self._inventory.waiting]
        return list(asked) if asked else self._plan(now)

    def on_entries_listed(self, bookie_id: str, reply: Reply, runs: tuple[Run, ...], now: int) -> list[Effect]:
        """Take the answer of a bookie to a ListEntries, or the lack of one."""
        if self.phase is not RepairPhase.LISTING:
            return []
        self._inventory.on_listed(bookie_id, reply, runs)
        return [] if self._inventory.waiting else self._plan(now)

    def on_batch_answer(self, request: int, reply: Reply, entries: Sequence[LedgerEntry], now: int) -> list[Effect]:
        """Take the answer of a bookie to a ReadBatch, or the lack of one."""
        if self.phase is RepairPhase.VERIFYING and request == self._requests:
            return self._on_verified(reply, entries, now)
        if self._read is None:
            return []
        return self._after_read(self._read.on_batch_answer(request, reply, entries, now), now)

    def on_copy_answer(self, entry_id: int, bookie_id: str, reply: Reply, now: int) -> list[Effect]:
        """Take the answer of a bookie to a SendCopy, or the lack of one."""
        if entry_id not in self._unanswered or bookie_id != self.steps[0].new:
            return []
        size, sent_at = self._unanswered.pop(entry_id)
        self._unanswered_bytes -= size
        assert self._unanswered_bytes >= 0, "an answer frees the bytes that its copy took"  # I15
        assert self._unanswered or not self._unanswered_bytes, "without a copy under way no bytes are"  # I15
        if reply is Reply.OK:
            self.copied_entries += 1
            self.copied_bytes += size
            self._window.note_stored(size, now - sent_at)
        elif not self._is_step_broken:
            self._is_step_broken = True
            self._window.note_refused()
            self._reasons.append(f"bookie {bookie_id} did not take its copies ({reply.value})")
            self._chooser.note_failure(bookie_id, now)
        return self._go_on(now)

    def tick(self, now: int) -> list[Effect]:
        """Act on the passing of time. Call at least every 100 ms."""
        if self.phase is RepairPhase.NAMING:
            return self._metadata.tick(now) + self._after_metadata(now)
        if self._read is not None:
            return self._after_read(self._read.tick(now), now)
        if self._paused_until and self.phase is RepairPhase.COPYING:
            return self._go_on(now)
        return []

    # -- steps

    def _plan(self, now: int) -> list[Effect]:
        """Make the list of steps: first the holes of staying bookies, then the positions of leaving ones."""
        inventory = self._inventory
        assert not inventory.waiting, "the plan rests on every answer"
        assert not self.steps, "the plan is made once"
        if inventory.silent:
            self._reasons.append(f"no word from {', '.join(sorted(inventory.silent))}")
        moves: list[CopyStep] = []
        for fragment in inventory.fragments:
            bookies = fragment.segment.bookies
            leaving = [p for p, bookie_id in enumerate(bookies) if bookie_id in self._leaving]
            chosen = self._chooser.choose_replacements(bookies, leaving, now, self._leaving) if leaving else {}
            for position, bookie_id in enumerate(bookies):
                if position in leaving:
                    moves += self._move(fragment, position, chosen.get(position, bookie_id))
                elif bookie_id in inventory.stored:
                    self.steps += self._fill(fragment, position, inventory.stored[bookie_id])
        self.steps += moves
        assert not any(step.new in self._leaving for step in self.steps), "a bookie that leaves gets no copies"
        if not self.record.is_closed and not self._leaving.isdisjoint(self.record.last_segment.bookies):
            self._reasons.append("the last segment is open: recover the ledger first")
        return self._go_on(now)

    def _move(self, fragment: Fragment, position: int, new: str) -> list[CopyStep]:
        """Return the step that gives the position of a bookie that leaves to ``new``; none if that is the same one."""
        old = fragment.segment.bookies[position]
        if new != old:
            runs = missing_runs(self._schedule, position, fragment, ())
            return [CopyStep(fragment.first_entry_id, position, old, new, runs)]
        self._needs_bookies = True
        is_empty = is_vacancy(old)
        self._reasons.append("no bookie can take a vacant position" if is_empty else f"no bookie can replace {old}")
        return []

    def _fill(self, fragment: Fragment, position: int, stored: Iterable[Run]) -> list[CopyStep]:
        """Return the step that copies a bookie's missing entries and verifies the reported ones, if there is any."""
        bookie_id = fragment.segment.bookies[position]
        step = CopyStep(fragment.first_entry_id, position, bookie_id, bookie_id)
        step.runs = missing_runs(self._schedule, position, fragment, stored)
        if bookie_id in self._damaged or (not step.runs and bookie_id in self._suspects):
            step.unverified = missing_runs(self._schedule, position, fragment, step.runs)
        return [step] if step.runs or step.unverified else []

    def _go_on(self, now: int) -> list[Effect]:
        """Continue the first step, end it, or end the repair."""
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
                # I10: every copy of this step was acknowledged as durable
                self.phase = REPAIR_LIFECYCLE.move(self.phase, RepairPhase.NAMING)
                return self._metadata.begin(self._renamed, now) + self._after_metadata(now)
            else:
                self.steps.pop(0)
        assert self._read is None, "a repair ends with no read under way"
        assert not self._unanswered, "a repair ends with no copy under way"
        self.phase = REPAIR_LIFECYCLE.move(self.phase, RepairPhase.DONE)
        reason = "; ".join(self._reasons)
        return [
            RepairFinished(
                not self._reasons,
                self.copied_entries,
                self.copied_bytes,
                reason,
                len(self._lost),
                self._needs_bookies and not self.copied_entries,
            )
        ]

    def _verify(self, step: CopyStep) -> list[Effect]:
        assert step.old == step.new, "only a bookie that stays is verified"
        self.phase = REPAIR_LIFECYCLE.move(self.phase, RepairPhase.VERIFYING)
        self._requests += 1
        (first, last), size = step.unverified[0], self._window.size
        return [ReadBatch(self._requests, self.ledger_id, step.new, first, last, min(size, BATCH_BYTES_MAX))]

    def _on_verified(self, reply: Reply, entries: Sequence[LedgerEntry], now: int) -> list[Effect]:
        step = self.steps[0]
        first, last = step.unverified[0]
        assert first <= last, "a run has an entry"
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
        assert not self._is_step_broken, "a broken step makes no copies"
        assert not step.unverified, "copies are made once those of the bookie are known"
        self.phase = REPAIR_LIFECYCLE.move(self.phase, RepairPhase.COPYING)
        entries_max = max(1, self.limits.in_flight_entries_max // 2)
        bytes_max = max(1, self._window.size // 2)
        is_full = len(self._unanswered) > self.limits.in_flight_entries_max - entries_max or (
            self._unanswered_bytes > self._window.size - bytes_max
        )
        if self._read is not None or not step.runs or (is_full and self._unanswered):
            return []
        if now < self._paused_until:
            return []  # the next tick goes on
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
        """Pass on the requests of the read under way, and act on its end."""
        passed: list[Effect] = []
        for effect in effects:
            if isinstance(effect, ReadFinished):
                self._end_read()
                passed += self._send(effect.entries, now)
                self._pace(effect.entries, now)
                passed += self._go_on(now)
            elif isinstance(effect, Failed):
                self._pass_over(effect.error)
                passed += self._go_on(now)
            elif not isinstance(effect, CopyDamaged):  # missing copies are in the plan already
                passed.append(effect)
        return passed

    def _pass_over(self, error: HeliographError) -> None:
        """Skip the next entry, which no replica gave. A bookie that is replaced needs every entry: its step ends."""
        assert self._read is not None, "a read that is under way failed"
        step = self.steps[0]
        if len(self._reasons) < REASONS_MAX:
            self._reasons.append(str(error))
        is_lost = isinstance(error, NoSuchEntryError | EntryDamagedError)
        if is_lost:
            self._lost.add(step.runs[0][0])
        if is_lost and step.old == step.new and self._unreadable_entries < UNREADABLE_ENTRIES_MAX:
            self._unreadable_entries += 1
            self._end_read()
            first, last = step.runs[0]
            step.runs[:1] = [(first + 1, last)] if first < last else []
        else:
            self._is_step_broken = True

    def _end_read(self) -> None:
        """Forget the read. Its late answers are known by their numbers, and ignored."""
        if self._read is not None:
            self._requests = self._read.requests
            self._read = None

    def _send(self, entries: tuple[LedgerEntry, ...], now: int) -> list[Effect]:
        step = self.steps[0]
        first, last = step.runs[0]
        assert entries[0].entry_id == first, "a read starts at the entry requested"
        copied_to = entries[-1].entry_id
        step.runs[:1] = [(copied_to + 1, last)] if copied_to < last else []
        for entry in entries:
            self._unanswered[entry.entry_id] = (len(entry.payload), now)
            self._unanswered_bytes += len(entry.payload)
        assert len(self._unanswered) <= max(1, self.limits.in_flight_entries_max), "the window holds"  # I15
        return [SendCopy(self.ledger_id, step.new, entry) for entry in entries]

    def _pace(self, entries: tuple[LedgerEntry, ...], now: int) -> None:
        """Put the next read off until the entries just read fit the rate limit."""
        if self.limits.bytes_per_second:
            size = sum(len(entry.payload) for entry in entries)
            self._paused_until = max(now, self._paused_until) + size * 1000 // self.limits.bytes_per_second

    def _renamed(self, record: LedgerMetadata) -> LedgerMetadata | None:
        """Return the record that names the new bookie, if its position still names the old one (I9)."""
        step = self.steps[0]
        return replace_bookie(record, step.first_entry_id, step.position, step.old, step.new)

    def _after_metadata(self, now: int) -> list[Effect]:
        outcome = self._metadata.outcome
        if outcome is None or self.phase is not RepairPhase.NAMING:
            return []
        self._metadata.outcome = None
        if isinstance(outcome, HeliographError):
            self.phase = REPAIR_LIFECYCLE.move(self.phase, RepairPhase.DONE)
            return [Failed(outcome)]
        step = self.steps.pop(0)
        segment = next(s for s in outcome.record.segments if s.first_entry_id == step.first_entry_id)
        if segment.bookies[step.position] == step.old:  # another repair gave the new bookie a position of this segment
            self._reasons.append(f"{step.new} has another position beside {step.old} now")
        return self._go_on(now)
