"""``make setup``: hashes are required whichever program installs, and each step is a line with its seconds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tools import environment


@pytest.fixture(autouse=True)
def _lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.lock").write_text("a==1 \\\n    --hash=sha256:0\nb.c-d==2 \\\n    --hash=sha256:1\n")


@pytest.mark.parametrize("uv", [None, "/opt/uv"])
def test_both_installers_require_hashes_of_the_same_lock(uv: str | None) -> None:
    steps = environment.commands(Path("made"), uv, "/usr/bin/python3")
    assert len(steps) == 3
    (title, locked), (_, own) = steps[1:]
    assert title.startswith("2 locked packages")
    assert locked[-3:] == ["--require-hashes", "-r", "requirements.lock"]
    assert own[-4:] == ["--no-deps", "--no-build-isolation", "-e", "."]
    assert {step[1][0] for step in steps} == ({uv} if uv else {"/usr/bin/python3", "made/bin/python"})


def test_an_environment_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "made" / "bin").mkdir(parents=True)
    (tmp_path / "made" / "bin" / "python").touch()
    assert len(environment.commands(Path("made"), None, "/usr/bin/python3")) == 2


def test_each_step_says_its_seconds_and_a_failure_what_was_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('Collecting a'); print('no such hash', file=sys.stderr); sys.exit(3)"
    python = str(Path(sys.prefix) / "bin" / "python")
    steps = [("made it", [python, "-c", "pass"]), ("installed", [python, "-c", program])]
    monkeypatch.setattr(environment, "commands", lambda *_: steps)
    assert environment.main(["made"]) == 3
    printed = capfd.readouterr()
    assert re.search(r"^ +\d+\.\d s  made it$", printed.out, re.MULTILINE)
    assert "no such hash" in printed.err
    assert "failed with 3" in printed.err
