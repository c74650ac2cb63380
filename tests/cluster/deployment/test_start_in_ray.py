"""``heliograph.start`` in a Ray that the caller made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cluster.deployment.test_your_ray import finished
from tests.rules.source import ROOT

MESSAGES = 40


@pytest.mark.cluster
def test_a_topic_between_two_tasks_survives_the_death_of_one(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
    environment |= {"HELIOGRAPH_STATE_ROOT": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.cluster.deployment.in_ray", str(tmp_path), str(MESSAGES)]
    assert finished(command, ROOT, environment).splitlines()[-1] == "done"
