"""A few rounds of ``python -m tests.chaos.broker``; ``make chaos-broker`` runs 20."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.broker import freeze_the_owner, run

ROUNDS = 2


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_when_the_owner_is_killed(tmp_path: Path) -> None:  # I1, I11, I12
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}: python -m tests.chaos.broker --rounds {ROUNDS} --seed {seed}")  # shown when this fails
    history = run(tmp_path, ROUNDS, seed)
    assert len(history.gaps) == ROUNDS
    assert len(history.acknowledged) > 500 * ROUNDS, "the load was real"


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_an_owner_frozen_for_longer_than_its_session_acknowledges_nothing(tmp_path: Path) -> None:  # I13
    freeze_the_owner(tmp_path)
