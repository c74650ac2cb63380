"""Reports of runs."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.profile import Plan


@dataclass
class Report:
    """The report of a run. ``failure`` is empty if every invariant held."""

    plan: Plan
    failure: str = ""
    simulated_ms: int = 0
    steps: int = 0
    confirmed: int = 0
    accepted: int = 0
    struck: list[int] = field(default_factory=list)  # numbers of the faults that happened
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    @property
    def invariant(self) -> str:
        """Return the invariant that the failure begins with, or "assert" or "crash" if the product raised."""
        return self.failure.split(" ", 1)[0]


def where() -> str:
    """Return the innermost lines of the current exception's traceback."""
    lines = traceback.format_exc().splitlines()[-4:-1]
    return " <- ".join(line.split("/")[-1].strip().replace('"', "") for line in lines)
