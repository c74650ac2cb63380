"""Every sabotage is caught, every checker catches one alone, and sabotages do harm that users can observe."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from tests.simulation.campaign import Hunt, hunt
from tests.simulation.checkers.judge import CALLS, COMPACTION, COUNTS, DELETION, LIVENESS, OUTCOMES, READING
from tests.simulation.mutants.mutants import MUTANTS

# A mutant for each checker that it catches alone.
BY_ITSELF = {
    "I1": "answer-adds-before-the-sync",
    "I2": "forget-outcomes",
    "I3": "tell-an-unconfirmed-lac",
    "I4": "fence-lets-writes-through",
    "I5": "forget-the-length",
    "I6": "no-limbo-after-a-lost-disk",
    "I7": "skip-fence-on-recovery-read",
    "I8": "use-segment-before-it-is-persisted",
    "I9": "close-over-recovery",
    "I10": "name-the-newcomer-before-copying",
    "I11": "restore-no-holes",
    "I12": "fence-the-last-ledger-only",
    "I13": "dispatch-after-the-topic-is-lost",
    "I14": "delete-before-the-list",
    "I15": "count-an-expired-frame-for-ever",
    "I16": "forget-who-holds-a-key",
    DELETION: "leave-the-last-partition",
    CALLS: "flush-what-is-sent-only",
    COUNTS: "count-a-part-as-its-batch",
    COMPACTION: "keep-the-oldest-value",
    READING: "resume-a-reader-behind-the-next-entry",
    "I20": "fence-what-nobody-can-complete",
    LIVENESS: "repair-claims-success",
}

# The mutants that no checker has to catch alone below: half of them each day; FULL=1 and ``make sim-mutants`` hunt all.
REST = sorted(MUTANTS.keys() - set(BY_ITSELF.values()))
HUNTED = REST[datetime.now(UTC).toordinal() % 2 :: 2]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in HUNTED else pytest.mark.full) for name in sorted(MUTANTS)]
)
def test_mutant_is_caught(name: str) -> None:
    """An invariant is seen broken, or the product's own assertion fails that the mutant names."""
    catch = hunt(Hunt(name, MUTANTS[name].start))
    assert catch.seeds, f"not caught; the first run that failed for another reason: {catch.accident or 'none'}"


@pytest.mark.parametrize("invariant", sorted(BY_ITSELF))
def test_checker_catches_a_mutant_by_itself(invariant: str) -> None:
    name = BY_ITSELF[invariant]
    catch = hunt(Hunt(name, MUTANTS[name].start, frozenset({invariant})))
    assert catch.invariant == invariant


@pytest.mark.parametrize("name", sorted(name for name, mutant in MUTANTS.items() if mutant.harm is not None))
def test_harm_is_done_when_only_outcomes_are_watched(name: str) -> None:
    start = MUTANTS[name].harm
    assert start is not None, "only those with a start are tried"
    assert hunt(Hunt(name, start, OUTCOMES)).invariant in OUTCOMES


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_tells_what_it_breaks(name: str) -> None:
    assert re.search(r"\b(I\d+|calls|counts|delay|deletion|compaction|reading|liveness)\b", MUTANTS[name].about)
