"""All mutants. Each must be caught: together they prove that the checkers can fail."""

from __future__ import annotations

from tests.simulation import recovery_mutants, storage_mutants, topic_mutants, writer_mutants
from tests.simulation.mutant import MUTANTS, Mutant

__all__ = ["MUTANTS", "MUTANTS_FROM", "Mutant"]

MUTANTS_FROM = (recovery_mutants, storage_mutants, writer_mutants, topic_mutants)  # mutants register themselves
