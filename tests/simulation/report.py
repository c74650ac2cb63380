"""Reports of runs."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import heliograph
from tests.sabotage import FILE_NAME
from tests.simulation.checkers.judge import BrokenInvariantError
from tests.simulation.profile import Plan

ASSERT, CRASH = "assert", "crash"  # what a failure begins with where no invariant was seen broken
_PRODUCT = (f"{Path(heliograph.__file__).parent}/", FILE_NAME)  # files of the product, and functions that are sabotaged


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
        """Return the invariant that the failure begins with; ASSERT or CRASH if an exception ended the run."""
        return self.failure.split(" ", 1)[0]


def failure_of(error: Exception) -> str:
    """Return what a report says of the exception that ended a run.

    A broken invariant is named by its number. ASSERT is an assertion of the product; CRASH is any other exception, and
    an assertion of the simulator: whether the product is to blame remains to be seen.
    """
    if isinstance(error, BrokenInvariantError):
        return str(error)
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, AssertionError) and innermost.startswith(_PRODUCT):
        return f"{ASSERT} {error or 'unnamed'} {_where(error)}"
    return f"{CRASH} {type(error).__name__}: {error} {_where(error)}"


def _where(error: Exception) -> str:
    """Return the innermost lines of a traceback."""
    lines = "".join(traceback.format_exception(error)).splitlines()[-4:-1]
    return " <- ".join(line.split("/")[-1].strip().replace('"', "") for line in lines)
