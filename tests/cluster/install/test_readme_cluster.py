"""The blocks of the README that need Ray, typed as they stand from an empty folder: a cluster, Ray tasks, Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.install.environment import ROOT, Environment
from tests.cluster.install.readme import blocks, commands
from tests.patience import START_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1_200)]


class Machine:
    """An empty folder with an environment in which the wheel is installed, with all extras."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self._environment = Environment.create(folder / "venv", wheel)
        self._settings = {
            "HELIOGRAPH_STATE_ROOT": str(folder / "state"),
            "HELIOGRAPH_START_TIMEOUT_MS": str(START_SECONDS * 1_000),
            **{f"HELIOGRAPH_{name}_PORT": "0" for name in ("BROKER", "GATEWAY", "DASHBOARD")},
        }

    def types(self, *lines: str) -> str:
        """Run lines of a shell; the first that fails ends them."""
        script = "\n".join(("set -euo pipefail", *lines))
        return self._environment.run(["bash", "-c", script], self._folder, self._settings)

    def runs(self, program: str) -> str:
        """Run a Python program."""
        (self._folder / "program.py").write_text(program)  # Spark's and Ray's workers look at sources
        return self._environment.run(["python", "program.py"], self._folder, self._settings)


@pytest.fixture(scope="module")
def machine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield the folder after the block `A cluster` was typed in it."""
    made = Machine(tmp_path_factory.mktemp("user"), wheel)
    [(_, text)] = blocks("A cluster")
    install, up, *rest = commands(text)
    assert install == "pip install '.[cluster]'"
    assert up == "helio up"
    try:
        said = made.types(up, *rest)
        assert "healthy" in said
        assert "100000" in said
        made.types("helio topics create orders --partitions 4", "helio produce orders one two three")
        yield made
    finally:
        made.types("helio down")


def test_in_your_ray(machine: Machine) -> None:
    [(language, program)] = blocks("In your Ray")
    assert language == "python"
    *_, last = program.strip().splitlines()
    assert "3" in machine.runs(program.replace(last, f"print({last})"))


def test_one_minute_of_spark(machine: Machine) -> None:
    [(language, program)] = blocks("One minute of Spark")
    assert language == "python"
    said = machine.runs(program)
    assert "|count|" in said.replace(" ", "")
    assert said.rstrip().endswith("3")


def test_the_commands_for_developers_are_targets() -> None:
    [(_, text)] = blocks("Two commands for developers")
    made = (ROOT / "Makefile").read_text()
    for line in commands(text):
        program, target = line.split()
        assert program == "make"
        assert f"\n{target}: " in made
