"""Mutants: sabotages with a name, each active while its context is entered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.simulation.profile import BOOKIE, CLIENT, DELETION, LEDGER, TOPIC
from tests.simulation.report import ASSERT, CRASH, Report

__all__ = ["BOOKIE", "CLIENT", "DELETION", "LEDGER", "MUTANTS", "TOPIC", "Mutant", "mutant"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A sabotage and what it breaks.

    Args:
        sabotage: patches one rule while its context is entered.
        start: a seed that catches it, so that tests are quick. The search goes on from there if it does not.
        harm_start: such a seed when only outcomes are watched, None if that is not tried.
        world: the world in which it is run.
        only: the one kind of fault that happens in its runs, empty for all kinds.
        asserted: text of the product's own assertion that catches it, empty if an invariant must be seen broken.
    """

    name: str
    sabotage: Callable[[], AbstractContextManager[None]]
    about: str
    start: int
    harm_start: int | None
    world: str = LEDGER
    only: str = ""
    asserted: str = ""

    def is_caught_by(self, report: Report) -> bool:
        """Whether the mutant, and not an accident, made a run fail."""
        if report.invariant == ASSERT:
            return self.asserted != "" and self.asserted in report.failure
        return report.failure != "" and report.invariant != CRASH


MUTANTS: dict[str, Mutant] = {}
Sabotage = Callable[[], Iterator[None]]


def mutant(
    start: int = 0, harm: int | None = None, world: str = LEDGER, only: str = "", asserted: str = ""
) -> Callable[[Sabotage], Sabotage]:
    """Register a sabotage under its function's name, with hyphens. Its docstring names the invariant that it breaks."""

    def add(function: Sabotage) -> Sabotage:
        name = function.__name__.replace("_", "-")
        assert name not in MUTANTS, f"two mutants are named {name}"
        assert function.__doc__, f"the mutant {name} does not tell what it breaks"
        MUTANTS[name] = Mutant(name, contextmanager(function), function.__doc__, start, harm, world, only, asserted)
        return function

    return add
