"""All mutants. Each must be caught, which proves that the checkers can fail."""

from __future__ import annotations

from tests.simulation.mutants import bookie as bookie_mutants
from tests.simulation.mutants import client as client_mutants
from tests.simulation.mutants import deletion as deletion_mutants
from tests.simulation.mutants import positions as position_mutants
from tests.simulation.mutants import ranges as range_mutants
from tests.simulation.mutants import recovery as recovery_mutants
from tests.simulation.mutants import silence as silence_mutants
from tests.simulation.mutants import storage as storage_mutants
from tests.simulation.mutants import topic as topic_mutants
from tests.simulation.mutants import upkeep as upkeep_mutants
from tests.simulation.mutants import vacancies as vacancy_mutants
from tests.simulation.mutants import writer as writer_mutants
from tests.simulation.mutants.mutant import MUTANTS, Mutant

__all__ = ["MUTANTS", "MUTANTS_FROM", "Mutant"]

MUTANTS_FROM = (
    recovery_mutants,
    storage_mutants,
    writer_mutants,
    vacancy_mutants,
    range_mutants,
    topic_mutants,
    position_mutants,
    bookie_mutants,
    silence_mutants,
    upkeep_mutants,
    client_mutants,
    deletion_mutants,
)  # mutants register themselves
