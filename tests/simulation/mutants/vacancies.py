"""Small sabotages of ledgers that were created while bookies were missing, and of the auditor's rules for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from unittest.mock import patch

from heliograph.actors.auditor import plan
from heliograph.actors.ledger import recovery
from heliograph.actors.ledger.effects import SendAdd
from heliograph.actors.ledger.pipeline import AddPipeline
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.schedule import WriteSchedule, vacancies_of
from heliograph.actors.ledger.verdict import EntryVerdict, Verdict
from tests.simulation.mutants.mutant import mutant


@mutant(start=128)
def count_a_vacancy_as_an_acknowledgement() -> Iterator[None]:
    """A place without a bookie counts as one that has the entry (I1)."""
    real = AddPipeline.add_entry

    def add_entry(self: AddPipeline, payload: bytes, length: int, now: int) -> SendAdd:
        effect = real(self, payload, length, now)
        self.held[effect.entry_id].acked |= vacancies_of(self.bookies) & self.schedule.mask(effect.entry_id)
        return effect

    with patch.object(AddPipeline, "add_entry", add_entry):
        yield


@mutant(start=197)
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


@mutant(start=3)
def fence_what_nobody_can_complete() -> Iterator[None]:
    """The auditor closes an open ledger with a lost bookie although no other could take its place (I20)."""

    def fenced(places: Collection[int], can_be_filled: bool) -> bool:
        return bool(places)

    with patch.object(plan, "must_be_fenced", fenced):
        yield


@mutant(start=128)
def refuse_ledgers_below_the_ensemble_size() -> Iterator[None]:
    """A ledger is only created with all its bookies, so a topic stops when one of them is gone (I20)."""
    real = BookieChooser.choose_ensemble

    def choose(self: BookieChooser, size: int, *rest: Any, least: int | None = None, **named: Any) -> tuple[str, ...]:
        return real(self, size, *rest, **named)

    with patch.object(BookieChooser, "choose_ensemble", choose):
        yield
