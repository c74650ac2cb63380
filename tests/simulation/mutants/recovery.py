"""Small sabotages of recovery, fencing and reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from heliograph.actors.ledger import effects, recovery
from heliograph.actors.ledger.effects import Effect, LedgerEntry, ReadEntry, Reply
from heliograph.actors.ledger.pipeline import AddPipeline
from heliograph.actors.ledger.placement import ensemble
from heliograph.actors.ledger.reader import ReadCore
from heliograph.actors.ledger.recovery import RecoveryCore
from heliograph.actors.ledger.schedule import WriteSchedule, schedule_of
from heliograph.actors.ledger.state import RecoveryPhase
from heliograph.actors.ledger.verdict import EntryVerdict
from heliograph.metadata.model import LedgerMetadata, LedgerState
from tests.simulation.mutants.mutant import changed, mutant, replaced
from tests.simulation.mutants.writer import sent_lac


@changed(RecoveryCore, "_fencing_read", harm=3131)
def skip_fence_on_recovery_read(real: Callable[..., ReadEntry], self: RecoveryCore, entry_id: int) -> ReadEntry:
    """Recovery reads do not fence: a late write can still reach its quorum beyond the closed end (I7, I5)."""
    return replace(real(self, entry_id), fence=False)


@mutant(harm=5)
def never_fence() -> Iterator[None]:
    """Neither the LAC reads nor the entry reads of a recovery fence (I7, I5)."""
    real_read = RecoveryCore._fencing_read

    def unfenced(ledger_id: int, targets: Any, fence: bool) -> Any:
        return effects.ReadLac(ledger_id, targets, fence=False)

    def unfenced_read(self: RecoveryCore, entry_id: int) -> ReadEntry:
        return replace(real_read(self, entry_id), fence=False)

    with patch.object(recovery, "ReadLac", unfenced), patch.object(RecoveryCore, "_fencing_read", unfenced_read):
        yield


@mutant(start=4, harm=42)
def persist_recovery_segments_early() -> Iterator[None]:
    """Recovery names its private segments before the close: the next one reads bookies without data (I7, I5)."""
    real = RecoveryCore._replace_failed
    real_after = RecoveryCore._after_metadata

    def merge(record: LedgerMetadata, own: Mapping[int, tuple[str, ...]]) -> Any:
        last = record.last_segment.first_entry_id
        return ensemble.merge_segments(record, {first: b for first, b in own.items() if first >= last})

    def public(self: RecoveryCore, pipeline: AddPipeline, now: int) -> list[Effect]:
        sent = real(self, pipeline, now)
        if sent and self._own_segments and not self._metadata.is_active:

            def change(record: LedgerMetadata) -> LedgerMetadata | None:
                merged = merge(record, self._own_segments)
                is_done = record.state is not LedgerState.IN_RECOVERY or merged == record.segments
                return None if is_done else replace(record, segments=merged)

            sent += self._metadata.begin(change, now)
        return sent

    def after(self: RecoveryCore, now: int) -> list[Effect]:
        if self.phase is RecoveryPhase.COPYING:
            self._metadata.outcome = None
            return []
        return real_after(self, now)

    with (
        patch.object(RecoveryCore, "_replace_failed", public),
        patch.object(RecoveryCore, "_after_metadata", after),
        patch.object(recovery, "merge_segments", merge),
    ):
        yield


@changed(RecoveryCore, "_fencing_read", start=11, harm=1574)
def read_from_private_segments(real: Callable[..., ReadEntry], self: RecoveryCore, entry_id: int) -> ReadEntry:
    """After a replacement, recovery reads from the new bookies, which never had the next entries (I7, I5)."""
    bookies = self._pipeline.bookies if self._pipeline is not None else ()
    effect = real(self, entry_id)
    return replace(effect, targets=tuple((p, bookies[p]) for p, _ in effect.targets)) if bookies else effect


@changed(EntryVerdict, "on_answer", start=3, harm=181)
def take_silence_for_absence(
    real: Callable[..., None], self: EntryVerdict, position: int, reply: Reply, entry: LedgerEntry | None
) -> None:
    """A timeout counts as an explicit "no such entry" (I7)."""
    real(self, position, Reply.ABSENT if reply is Reply.UNKNOWN else reply, entry)


@mutant(start=1, harm=62)
def one_negative_is_enough() -> Iterator[None]:
    """One "no such entry" proves the absence of an entry, with any quorums (I7)."""
    real = WriteSchedule.__init__

    def hasty(self: WriteSchedule, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        real(self, ensemble_size, write_quorum, ack_quorum)
        self.negatives_needed = 1

    def covers(self: WriteSchedule, usable: int) -> bool:
        needed = self.write_quorum - self.ack_quorum + 1
        return all((mask & usable).bit_count() >= needed for mask in self.masks)

    schedule_of.cache_clear()  # of schedules without the fault, which ledgers share
    try:
        with patch.object(WriteSchedule, "__init__", hasty), patch.object(WriteSchedule, "covers", covers):
            yield
    finally:
        schedule_of.cache_clear()


@mutant(start=109)
def forget_lac_floor() -> Iterator[None]:
    """An empty last segment makes recovery start at entry 0, and write old segments again (I8)."""
    real_begin = RecoveryCore._begin_copying

    class Floorless:
        def __init__(self, segment: Any) -> None:
            self.first_entry_id = 0
            self.bookies = segment.bookies

    def begin(self: RecoveryCore, now: int) -> list[Effect]:
        with patch.object(LedgerMetadata, "last_segment", property(lambda s: Floorless(s.segments[-1]))):
            return real_begin(self, now)

    with patch.object(RecoveryCore, "_begin_copying", begin):
        yield


@mutant(start=3)
def advance_lac_in_recovery() -> Iterator[None]:
    """Recovery's writes carry an advancing LAC: a losing one leaves bookies with a LAC beyond the end (I3)."""
    with sent_lac(lambda pipeline, lac: pipeline.last_add_pushed if pipeline._recovery else lac):
        yield


@changed(RecoveryCore, "_closed", start=36)
def close_twice(
    real: Callable[..., LedgerMetadata | None], self: RecoveryCore, record: LedgerMetadata
) -> LedgerMetadata | None:
    """A recovery that finds the ledger closed by another one closes it again, at the end that it found (I5)."""
    if not record.is_closed or record.last_entry_id == self.last_add_confirmed:
        return real(self, record)
    return replace(record, last_entry_id=self.last_add_confirmed, length=self._final_length)


@replaced(RecoveryCore, "_measure_end", start=2)
def forget_the_length(self: RecoveryCore, pipeline: AddPipeline, now: int) -> list[Effect]:
    """A recovery that found nothing after the LAC closes the ledger with length 0 (I5)."""
    return self._begin_closing(pipeline.confirmed_length, now)


@mutant()
def read_beyond_the_range() -> Iterator[None]:
    """A reader returns one entry more than it may (I3)."""
    real_init = ReadCore.__init__

    def init(self: ReadCore, record: LedgerMetadata, first: int, last: int, *rest: Any, **named: Any) -> None:
        real_init(self, record, first, last + 1, *rest, **named)

    with patch.object(ReadCore, "__init__", init):
        yield
