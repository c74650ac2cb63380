"""A few rounds of ``python -m tests.chaos.bookie``; ``make chaos-bookie`` runs 200."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.bookie import LIFE_ENTRIES_MIN, run

ROUNDS = 3


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("directories", [1, 2])
def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path, directories: int) -> None:  # I1, I4
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}: python -m tests.chaos.bookie --rounds {ROUNDS} --seed {seed}")  # shown when this fails
    history = run(tmp_path, ROUNDS, seed, is_quiet=True, directories=directories)
    assert history.kills == ROUNDS
    assert len(list(tmp_path.glob("*/*.journal"))) >= directories
    assert len({path.parent for path in tmp_path.glob("*/*.log")}) == directories
    assert len(history.acknowledged | history.in_doubt) >= LIFE_ENTRIES_MIN * (ROUNDS - history.kills_in_start)
