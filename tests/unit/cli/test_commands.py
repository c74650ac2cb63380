"""The table of commands is true, and neither help nor completion loads what only a running command needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.app import app
from heliograph.cli.command_table import PURPOSES
from tests.rules.source import ROOT

pytestmark = pytest.mark.slow

ENTRIES = [entry for purpose in PURPOSES for entry in purpose.entries]
SLOW = {"asyncio", "cryptography", "google.protobuf", "httpx", "importlib.metadata", "pydantic", "ray", "rich", "ssl"}
LOADED = """
import sys
sys.argv[0] = "helio"  # the name by which shells ask for completion
try:
    from heliograph.cli import main
    main()
finally:
    print("loaded", *sys.modules)
"""


def loaded(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """Run `helio`; return what it printed, and the slow modules that it imported."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **environment}, check=False,
    )  # fmt: skip
    shown, _, modules = ran.stdout.rpartition("loaded ")
    assert modules, ran.stderr
    return shown, SLOW & {*modules.split()}


def root() -> Any:
    group: Any = typer.main.get_command(app)
    group.load_all()
    return group


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_list_says_what_the_command_says(entry: Any) -> None:
    assert root().commands[entry.name].get_short_help_str(200).rstrip(".") == entry.summary.rstrip(".")


def test_names_are_unique_and_an_old_name_is_not_listed() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    shown, _ = loaded("--help")
    assert "\n  bookies " in shown
    assert "\n  bookie " not in shown
    assert "Usage" in loaded("bookie", "--help")[0]


def test_nothing_but_the_list_of_changes_says_an_older_name() -> None:
    older = [entry.name for entry in ENTRIES if entry.older_name_of]
    assert older == ["bookie"]
    said = re.compile(rf"\bhelio ({'|'.join(older)})\b")
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("heliograph/c*/**/*.py"),
        *ROOT.glob("actors/**/*.py"),
    ]
    found = [str(text) for text in texts if text.name != "CHANGELOG.md" and said.search(text.read_text())]
    assert not found


@pytest.mark.parametrize("arguments", [("--help",), ("topics", "--help"), ("consume", "--help"), ("up", "--help")])
def test_help_loads_nothing_slow(arguments: tuple[str, ...]) -> None:
    shown, slow = loaded(*arguments)
    assert "Usage:" in shown
    assert not slow


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("helio to", "topics"), ("helio topics cr", "create"), ("helio topics create --pa", "--partitions")],
)
def test_completion_loads_nothing_slow(typed: str, completed: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    shown, slow = loaded(_HELIO_COMPLETE="complete_bash", **words)
    assert completed in shown.split()
    assert not slow


def test_the_modules_of_all_commands_load_nothing_slow() -> None:
    program = f"""
import sys, typer
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.app import app
group = typer.main.get_command(app)
for name in {[entry.name for entry in ENTRIES]}:
    group.load(name)
    slow = {sorted(SLOW)!r}
    found = [each for each in slow if each in sys.modules]
    assert not found, (name, found)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr


def test_the_package_loads_nothing_slow() -> None:
    program = "import sys, heliograph; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not SLOW & {*ran.stdout.split()}


def test_the_store_of_a_home_is_found_without_ray(tmp_path: Path) -> None:
    """A plain install with ``helio dev`` has no Ray, and loading it takes a second."""
    ClusterHome(tmp_path).save(ClusterState("n", "", "", metadata_url="heliograph://127.0.0.1:1"))
    program = f"""
import sys
from pathlib import Path
from heliograph.cli.operations.metadata_access import store_of
print(store_of(Path({str(tmp_path)!r})), "ray" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["heliograph://127.0.0.1:1", "False"]
