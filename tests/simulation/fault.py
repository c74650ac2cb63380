"""What a fault is: a name, a weight, and what it does. ``faults`` and ``events`` hold the kinds that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.nemesis import Nemesis

Strike = Callable[["Nemesis", Random], bool]  # tells whether it happened


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind."""

    name: str
    weight: int
    strike: Strike


KINDS: list[Fault] = []


def fault(name: str, weight: int, kinds: list[Fault] = KINDS) -> Callable[[Strike], Strike]:
    """Add a kind to ``kinds``. Among its seed's faults it comes up in proportion to ``weight``."""

    def add(strike: Strike) -> Strike:
        assert all(kind.name != name for kind in kinds), f"two kinds of fault are named {name!r}"
        kinds.append(Fault(name, weight, strike))
        return strike

    return add
