"""Bookies that failed are not chosen for a moment, or for long if they fail often."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from heliograph.actors.ledger.limits import QuarantineLimits
from heliograph.actors.ledger.placement.chooser import BookieChooser, Quarantine
from heliograph.actors.ledger.placement.placement import RackAwarePlacement, Randomness, RandomPlacement
from heliograph.metadata.model import BookieRegistration

LIMITS = QuarantineLimits(pause_ms=100, failures=3, window_ms=1_000, quarantine_ms=5_000)


def bookie(name: str, rack: str = "default") -> BookieRegistration:
    return BookieRegistration(name, "host:1", rack=rack)


def failed(*times: int) -> Quarantine:
    quarantine = Quarantine(LIMITS)
    for now in times:
        quarantine.note_failure("b1", now)
    return quarantine


def test_enough_failures_within_the_window_are_a_quarantine() -> None:
    quarantine = failed(0, 500, 1_000)
    assert quarantine.is_quarantined("b1", 1_000)
    assert quarantine.is_quarantined("b1", 1_000 + LIMITS.quarantine_ms - 1)
    assert not quarantine.is_quarantined("b1", 1_000 + LIMITS.quarantine_ms)
    assert not quarantine.is_quarantined("b2", 1_000)


def test_fewer_failures_are_none() -> None:
    quarantine = failed(0, 1)
    assert not quarantine.is_quarantined("b1", 1)
    assert quarantine.is_paused("b1", 1)


def test_failures_over_a_longer_time_are_none() -> None:
    assert not failed(0, 500, 1_001).is_quarantined("b1", 1_001)
    assert failed(0, 500, 1_001, 1_002).is_quarantined("b1", 1_002)  # the first one is forgotten


def test_what_is_known_of_bookies_that_are_gone_is_forgotten() -> None:
    chooser = BookieChooser(RandomPlacement(), Random(1), LIMITS)
    chooser.set_writable([bookie("b1"), bookie("b2")])
    for now in range(LIMITS.failures):
        chooser.note_failure("b1", now)
    for number in range(10_000):
        chooser.note_failure(f"gone-{number}", 0)
    assert len(chooser._quarantine._failures) <= 3  # I15: the writable ones, and the latest of the others
    assert chooser._quarantine.is_quarantined("b1", LIMITS.failures)  # failures of writable bookies stay


class Watching(RackAwarePlacement):
    """A policy that records the staying bookies of each replacement."""

    def __init__(self) -> None:
        super().__init__()
        self.staying: list[list[str]] = []

    def replacement(
        self,
        candidates: Sequence[BookieRegistration],
        staying: Sequence[BookieRegistration],
        leaving: BookieRegistration | None,
        randomness: Randomness,
    ) -> str | None:
        self.staying.append([bookie.bookie_id for bookie in staying])
        return super().replacement(candidates, staying, leaving, randomness)


def test_the_second_replacement_is_chosen_beside_the_first() -> None:
    placement = Watching()
    chooser = BookieChooser(placement, Random(1), LIMITS)
    chooser.set_writable([bookie("b3", "r3"), bookie("b4", "r4"), bookie("b5", "r5")])  # b1 and b2 are gone
    chosen = chooser.choose_replacements(("b1", "b2", "b3"), [0, 1], 0)
    assert placement.staying == [["b3"], ["b3", chosen[0]]]
