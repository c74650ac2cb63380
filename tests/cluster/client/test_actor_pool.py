"""examples/actor_pool.py: every document is done although an actor is killed; docs/tutorial.md shows all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.source import ROOT
from tests.unit.pages.snippets import snippets

SECONDS = 600
PROGRAM = ROOT / "examples" / "actor_pool.py"


def test_the_tutorial_shows_the_whole_program() -> None:
    shown = [each.code for each in snippets(ROOT / "docs" / "tutorial.md") if each.kind == "python"]
    assert len(shown) > 4
    assert "".join(shown).split() == PROGRAM.read_text().split()


@pytest.mark.cluster
@pytest.mark.timeout(SECONDS + 60)
def test_every_document_becomes_a_vector_or_a_dead_letter(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
    environment |= {"HELIOGRAPH_STATE_ROOT": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "200 vectors and 2 dead letters"
