"""The kinds of faults: a name, a weight, and a function. ``faults``, ``events`` and ``disasters`` register them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.faults.nemesis import Nemesis

Strike = Callable[["Nemesis", Random], bool]  # returns whether the fault happened


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    weight: int
    strike: Strike


KINDS: list[Fault] = []


def fault(name: str, weight: int, kinds: list[Fault] = KINDS) -> Callable[[Strike], Strike]:
    """Register a kind of fault. It is chosen in proportion to ``weight``."""

    def add(strike: Strike) -> Strike:
        assert all(kind.name != name for kind in kinds), f"two kinds of fault are named {name!r}"
        kinds.append(Fault(name, weight, strike))
        return strike

    return add
