"""Mutants: sabotages with a name, each active while its context is entered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Any, TypedDict, TypeVar
from unittest.mock import patch

from typing_extensions import Unpack

from tests.sabotage import sabotaged
from tests.simulation.profile import BOOKIE, CLIENT, DELETION, LEDGER, TOPIC
from tests.simulation.report import ASSERT, CRASH, Report

__all__ = [
    "BOOKIE", "CLIENT", "DELETION", "LEDGER", "MUTANTS", "TOPIC", "Mutant", "changed", "edit", "mutant", "replaced",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A sabotage and what it breaks.

    Args:
        sabotage: patches one rule while its context is entered.
        start: a seed that catches it, so that tests are quick. The search goes on from there if it does not.
        harm: such a seed when only outcomes are watched, None if that is not tried.
        world: the world in which it is run.
        only: the one kind of fault that happens in its runs, empty for all kinds.
        asserted: text of the product's own assertion that catches it, empty if an invariant must be seen broken.
    """

    name: str
    sabotage: Callable[[], AbstractContextManager[Any]]
    about: str
    start: int = 0
    harm: int | None = None
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
F = TypeVar("F", bound=Callable[..., Any])


class Facts(TypedDict, total=False):
    """What is said of a mutant besides its sabotage; the fields are those of ``Mutant``."""

    start: int
    harm: int | None
    world: str
    only: str
    asserted: str


def mutant(**facts: Unpack[Facts]) -> Callable[[Sabotage], Sabotage]:
    """Register a sabotage under its function's name, with hyphens. Its docstring names the invariant that it breaks."""
    return lambda function: _registered(function, contextmanager(function), facts)


def edit(target: str, old: str, new: str, **facts: Unpack[Facts]) -> Callable[[F], F]:
    """Register the sabotage that replaces text of a function, as ``sabotaged`` does, under the name of an empty one."""
    return lambda function: _registered(function, lambda: sabotaged(target, old, new), facts)


def replaced(owner: Any, name: str, **facts: Unpack[Facts]) -> Callable[[F], F]:
    """Register the sabotage that puts a function in the place of one of the product, under the name of the former."""

    def add(function: F) -> F:
        _check_arguments(function, getattr(owner, name))
        return _registered(function, lambda: patch.object(owner, name, function), facts)

    return add


def changed(owner: Any, name: str, **facts: Unpack[Facts]) -> Callable[[F], F]:
    """Register a sabotage as ``replaced`` does; the first argument of the function is the one that it replaces."""

    def add(function: F) -> F:
        _check_arguments(partial(function, None), getattr(owner, name))

        @contextmanager
        def sabotage() -> Iterator[None]:
            real = getattr(owner, name)
            with patch.object(owner, name, lambda *args, **named: function(real, *args, **named)):
                yield

        return _registered(function, sabotage, facts)

    return add


def _check_arguments(function: Callable[..., Any], real: Callable[..., Any]) -> None:
    """Raise TypeError if a function cannot be called with all arguments of the one that it replaces: no run needs to
    come by to tell that the product has changed."""
    parameters = inspect.signature(real).parameters.values()
    named = [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
    others = [each for each in parameters if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    inspect.signature(function).bind(*others, **dict.fromkeys(named))


def _registered(function: F, sabotage: Callable[[], AbstractContextManager[Any]], facts: Facts) -> F:
    name = function.__name__.replace("_", "-")
    assert name not in MUTANTS, f"two mutants are named {name}"
    assert function.__doc__, f"the mutant {name} does not tell what it breaks"
    MUTANTS[name] = Mutant(name, sabotage, function.__doc__, **facts)
    return function
