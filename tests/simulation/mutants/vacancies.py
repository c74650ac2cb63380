"""Small sabotages of ledgers that were created while bookies were missing, and of the auditor's rules for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from unittest.mock import patch

from heliograph.actors.auditor import plan
from heliograph.actors.ledger import inventory, recovery
from heliograph.actors.ledger.effects import SendAdd
from heliograph.actors.ledger.inventory import Fragment
from heliograph.actors.ledger.pipeline import AddPipeline
from heliograph.actors.ledger.recovery import RecoveryCore
from heliograph.actors.ledger.schedule import WriteSchedule, is_vacancy, vacancies_of
from heliograph.actors.ledger.verdict import EntryVerdict, Verdict
from heliograph.metadata.model import LedgerMetadata
from tests.simulation.mutants.mutant import mutant


@mutant()
def count_a_vacancy_as_an_acknowledgement() -> Iterator[None]:
    """A place without a bookie counts as one that has the entry (I1)."""
    real = AddPipeline.add_entry

    def add_entry(self: AddPipeline, payload: bytes, length: int, now: int) -> SendAdd:
        effect = real(self, payload, length, now)
        self.held[effect.entry_id].acked |= vacancies_of(self.bookies) & self.schedule.mask(effect.entry_id)
        return effect

    with patch.object(AddPipeline, "add_entry", add_entry):
        yield


@mutant()
def count_a_vacancy_twice() -> Iterator[None]:
    """A recovery counts a place without a bookie as two negatives, so that no bookie has to deny the entry (I7)."""

    class Twice(EntryVerdict):
        __slots__ = ("_vacant",)

        def __init__(self, schedule: WriteSchedule, entry_id: int, vacant: int = 0) -> None:
            super().__init__(schedule, entry_id, vacant)
            self._vacant = (vacant & schedule.mask(entry_id)).bit_count()

        @property
        def verdict(self) -> Verdict:
            found = super().verdict
            twice = self._negatives + getattr(self, "_vacant", 0) >= self._schedule.negatives_needed
            return Verdict.ABSENT if found in (Verdict.PENDING, Verdict.UNKNOWN) and twice else found

    with patch.object(recovery, "EntryVerdict", Twice):
        yield


@mutant()
def remember_a_vacancy_that_was_filled() -> Iterator[None]:
    """A recovery counts places as vacant by the record that it began with, and not by the one that it marked (I7)."""
    real = RecoveryCore.__init__

    def init(self: RecoveryCore, metadata: Any, *rest: Any, **named: Any) -> None:
        real(self, metadata, *rest, **named)
        self._born = vacancies_of(metadata.record.last_segment.bookies)  # type: ignore[attr-defined]

    def verdict(self: RecoveryCore, entry_id: int) -> EntryVerdict:
        return EntryVerdict(self._schedule, entry_id, self._born)  # type: ignore[attr-defined]

    with patch.object(RecoveryCore, "__init__", init), patch.object(RecoveryCore, "_new_verdict", verdict):
        yield


@mutant()
def name_the_newcomer_in_an_open_segment() -> Iterator[None]:
    """Repair fills a vacancy in the segment that a writer is still writing (I10)."""
    real = inventory.decided_fragments

    def decided(record: LedgerMetadata) -> list[Fragment]:
        fragments = real(record)
        last = record.last_segment
        if not record.is_closed and any(map(is_vacancy, last.bookies)):
            fragments.append(Fragment(last, last.first_entry_id - 1))
        return fragments

    with patch.object(inventory, "decided_fragments", decided):
        yield


@mutant()
def fence_what_nobody_can_complete() -> Iterator[None]:
    """The auditor closes an open ledger with a lost bookie although no other could take its place (I20)."""

    def fenced(places: Collection[int], can_be_filled: bool) -> bool:
        return bool(places)

    with patch.object(plan, "must_be_fenced", fenced):
        yield


@mutant()
def refuse_ledgers_below_the_ensemble_size() -> Iterator[None]:
    """A ledger is only created with all its bookies, so a topic stops when one of them is gone (I20)."""
    from heliograph.actors.ledger.placement.chooser import BookieChooser

    real = BookieChooser.choose_ensemble

    def choose(self: BookieChooser, size: int, *rest: Any, least: int | None = None, **named: Any) -> tuple[str, ...]:
        return real(self, size, *rest, **named)

    with patch.object(BookieChooser, "choose_ensemble", choose):
        yield
