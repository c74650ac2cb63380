"""Examples of tables and training, each in a Ray of its own: they count what they print."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS = 600
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(SECONDS + 60)]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("resumable_inference", "1000 answers to 1000 documents by 3 drivers, 2 of which were killed"),
        ("change_data_capture", "rows after 2000 changes, of which the stream had the second half"),
        ("reinforcement_learning", "400 samples of 5 steps, each counts once; 1 actor was killed; [3, 4] are left"),
    ],
)
def test_an_example_counts_right(name: str, told: str) -> None:
    command = [sys.executable, "-m", f"examples.{name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
