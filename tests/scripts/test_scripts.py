"""Every script gives the trace below its ``---``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.stage import Stage

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    commands, _, expected = path.read_text().partition("---\n")
    trace = Stage().play(commands)
    if request.config.getoption("--rewrite"):
        path.write_text(f"{commands}---\n{trace}")
        return
    assert trace == expected, f"if this is how it should be: pytest tests/scripts --rewrite -k {path.stem}"


def test_there_are_scripts() -> None:
    assert SCRIPTS
