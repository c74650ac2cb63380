"""The first minutes of the README, typed as they stand there: a plain install, `helio dev`, and a second terminal."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.install.environment import Environment
from tests.cluster.install.readme import blocks, commands

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_HTTP = "http://127.0.0.1:8080"


class Terminal:
    """A shell in an empty folder, beside a `helio dev` on free ports."""

    def __init__(self, environment: Environment, folder: Path, http_url: str) -> None:
        self._environment = environment
        self._folder = folder
        self._http_url = http_url

    def types(self, text: str) -> str:
        """Run the lines of a block; the first that fails ends them."""
        script = "set -euo pipefail\n" + text.replace(_HTTP, self._http_url)
        return self._environment.run(["bash", "-c", script], self._folder, self.settings(self._folder))

    def runs(self, program: str) -> str:
        return self._environment.run(["python", "-c", program], self._folder, self.settings(self._folder))

    @staticmethod
    def settings(folder: Path) -> dict[str, str]:
        return {"HELIOGRAPH_STATE_ROOT": str(folder / "state")}


@pytest.fixture(scope="module")
def terminal(plain: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("user")
    [install, dev] = commands(blocks("The first five minutes")[0][1])
    assert install == "pip install ."
    helio, *arguments = dev.split()
    found = shutil.which(helio, path=str(plain.directory / "bin"))
    assert found is not None
    with subprocess.Popen(
        [found, *arguments, "--port", "0", "--http-port", "0", "--json"],
        cwd=folder,
        env=plain.variables(Terminal.settings(folder)),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield Terminal(plain, folder, json.loads(process.stdout.readline())["http_url"])
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_the_first_five_minutes(terminal: Terminal) -> None:
    said = terminal.types(blocks("The first five minutes")[1][1])
    assert "\nhello\n" in said
    assert "persistent://public/default/orders" in said


def test_from_python(terminal: Terminal) -> None:
    [(language, program)] = blocks("From Python")
    assert language == "python"
    assert "kitchen b'21.5'" in terminal.runs(program)


def test_one_minute_of_http(terminal: Terminal) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    [(_, text)] = blocks("One minute of HTTP")
    assert "21.5" in terminal.types(text)
