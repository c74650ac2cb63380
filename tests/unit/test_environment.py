"""``make setup``: hashes are required whichever program installs, and each step is a line; ``make test``: turns."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import files_of_the_day
from tests.rules.source import ROOT
from tools import environment

UV = "uv==3 \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n"


@pytest.fixture(autouse=True)
def _lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lock = "a==1 \\\n    --hash=sha256:0\nb.c-d==2 \\\n    --hash=sha256:1\n" + UV
    (tmp_path / "requirements.lock").write_text(lock)


@pytest.mark.parametrize("uv", [None, "/opt/uv"])
def test_uv_installs_with_hashes_and_comes_from_the_lock_where_it_is_missing(uv: str | None) -> None:
    steps = environment.commands(Path("made"), uv, "/usr/bin/python3")
    (title, locked), (_, own) = steps[-2:]
    assert title.startswith("3 locked packages")
    assert locked[-3:] == ["--require-hashes", "-r", "requirements.lock"]
    assert own[-4:] == ["--no-deps", "--no-build-isolation", "-e", "."]
    assert locked[0] == own[0] == (uv or "made/bin/uv")
    if uv is None:
        (_, made), (_, installed) = steps[:2]
        assert made[0] == "/usr/bin/python3"
        assert installed[0] == "made/bin/python"
        assert installed[-3:] == ["--require-hashes", "-r", "made/uv.lock"]


def test_the_lock_of_uv_is_its_part_of_the_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "commands", lambda *_: [])
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert environment.main([str(tmp_path / "made")]) == 0
    assert (tmp_path / "made" / "uv.lock").read_text() == UV
    assert environment._UV.findall((ROOT / environment.LOCK).read_text()), "the lock file of the repository has uv"


@pytest.mark.slow
def test_uv_looks_for_packages_where_pip_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_FIND_LINKS", "SSL_CERT_FILE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    found = environment.settings_of_pip(sys.executable)
    assert (found["UV_DEFAULT_INDEX"], found["UV_FIND_LINKS"]) == ("https://mirror/simple", "/a,/b")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://own/simple")
    assert environment.settings_of_pip(sys.executable)["UV_DEFAULT_INDEX"] == "https://own/simple"


def test_an_environment_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "made" / "bin").mkdir(parents=True)
    (tmp_path / "made" / "bin" / "python").touch()
    assert len(environment.commands(Path("made"), "/opt/uv", "/usr/bin/python3")) == 2


def test_each_step_says_its_seconds_and_a_failure_what_was_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('no such hash', file=sys.stderr); sys.exit(3)"
    python = str(Path(sys.prefix) / "bin" / "python")
    steps = [("made it", [python, "-c", "pass"]), ("installed", [python, "-c", program])]
    monkeypatch.setattr(environment, "commands", lambda *_: steps)
    assert environment.main(["made"]) == 3
    printed = capfd.readouterr()
    assert re.search(r"^ +\d+\.\d s  made it$", printed.out, re.MULTILINE)
    assert "no such hash" in printed.err
    assert "failed with 3" in printed.err


def test_every_file_of_the_slow_tiers_has_its_turn_within_two_days() -> None:
    files = {Path(f"test_{letter}.py") for letter in "abcde"}
    for day in (739_000, 739_001):
        today, tomorrow = files_of_the_day(files, day), files_of_the_day(files, day + 1)
        assert today | tomorrow == files
        assert not today & tomorrow
        assert abs(len(today) - len(tomorrow)) == 1
