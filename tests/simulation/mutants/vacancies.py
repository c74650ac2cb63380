"""Small sabotages of ledgers that were created while bookies were missing, and of the auditor's rules for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any
from unittest.mock import patch

from heliograph.actors.auditor import plan
from heliograph.actors.ledger import recovery
from heliograph.actors.ledger.effects import SendAdd
from heliograph.actors.ledger.pipeline import AddPipeline
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.schedule import WriteSchedule, vacancies_of
from heliograph.actors.ledger.verdict import EntryVerdict, Verdict
from tests.simulation.mutants.mutant import changed, mutant, replaced


@changed(AddPipeline, "add_entry", start=128)
def count_a_vacancy_as_an_acknowledgement(
    real: Callable[..., SendAdd], self: AddPipeline, payload: bytes, length: int, now: int
) -> SendAdd:
    """A place without a bookie counts as one that has the entry (I1)."""
    effect = real(self, payload, length, now)
    self.held[effect.entry_id].acked |= vacancies_of(self.bookies) & self.schedule.mask(effect.entry_id)
    return effect


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


@replaced(plan, "must_be_fenced", start=3)
def fence_what_nobody_can_complete(places: Collection[int], can_be_filled: bool) -> bool:
    """The auditor closes an open ledger with a lost bookie although no other could take its place (I20)."""
    return bool(places)


@changed(BookieChooser, "choose_ensemble", start=128)
def refuse_ledgers_below_the_ensemble_size(
    real: Callable[..., tuple[str, ...]],
    self: BookieChooser,
    size: int,
    *rest: Any,
    least: int | None = None,
    **named: Any,
) -> tuple[str, ...]:
    """A ledger is only created with all its bookies, so a topic stops when one of them is gone (I20)."""
    return real(self, size, *rest, **named)
