"""What Linux alone has is not needed: the disk's tests and the first minutes pass where its names are taken away.

No Mac takes part: what differs there otherwise is not seen here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.source import ROOT
from tests.unit.standalone.test_testing import CONFTEST, PLUGIN, SUITE

pytestmark = pytest.mark.slow

SECONDS = 300
TAKEN = "from tests.unit.base.system import macos; macos.take_away()\n"
FIRST_MINUTES = """
import sys, heliograph
from heliograph.client.options import ClientOptions
with heliograph.local(sys.argv[1], bookies=3) as cluster, cluster.connect() as client:
    with client.producer("orders") as producer:
        producer.send("hello", key="k")
        producer.send_many([str(n) for n in range(1000)])
    with client.consumer("orders", "s", initial_position="earliest") as consumer:
        consumer.ack(consumer.receive(30))
with heliograph.local(sys.argv[1], bookies=3) as cluster, cluster.connect() as client:
    with client.consumer("orders", "s") as consumer:
        assert consumer.receive(30).value == b"0"
assert macos.full_syncs > 10, macos.full_syncs
"""
COMMANDS = (
    ("topics", "create", "orders", "--partitions", "4"),
    ("topics", "list"),
    ("produce", "orders"),
    ("consume", "orders", "-s", "audit", "--from", "earliest", "-n", "1"),
    ("status",),
    ("doctor",),
    ("logs",),
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a program that finds macOS's ``sysctl``."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sysctl"
    program.write_text("#!/bin/sh\necho 6A1B-boot\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "HELIOGRAPH_HOME": str(tmp_path / "home")}


def run(program: str, *arguments: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", TAKEN + program, *arguments]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


def test_a_cluster_in_a_program_keeps_what_it_confirmed(tmp_path: Path, environment: dict[str, str]) -> None:
    run(FIRST_MINUTES, str(tmp_path / "data"), environment=environment)


def test_the_tests_of_the_disk_pass(environment: dict[str, str]) -> None:
    files = [f"tests/unit/bookie/{name}" for name in ("test_storage.py", "test_shared_paths.py", "test_kept_runs.py")]
    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    files += ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    run(program, *files, environment=environment)


@pytest.mark.full
def test_a_suite_uses_the_fixtures_of_pytest(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    program = "import os, pytest, sys; os.chdir(sys.argv.pop(1)); sys.exit(pytest.main(sys.argv[1:]))"
    options = ("-q", "-p", PLUGIN, "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    run(program, str(tmp_path), *options, environment={**environment, "PYTHONPATH": str(ROOT)})
    assert (tmp_path / "directories").read_text()


def test_the_first_minutes_of_helio_dev(environment: dict[str, str]) -> None:
    helio = "import sys; sys.argv[0] = 'helio'; from heliograph.cli import main; main()"
    command = [sys.executable, "-c", TAKEN + helio, "dev", "--port", "0", "--http-port", "0", "--json"]
    dev = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert dev.stdout is not None
        assert "service_url" in dev.stdout.readline()
        for arguments in COMMANDS:
            ran = subprocess.run(
                [sys.executable, "-c", TAKEN + helio, *arguments], cwd=ROOT, env=environment, input="hello\n",
                capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            assert (ran.returncode, ran.stderr) == (0, ""), arguments
            assert arguments[0] != "consume" or ran.stdout == "hello\n"
    finally:
        dev.terminate()
        assert dev.stdout is not None
        dev.stdout.read()
        dev.stdout.close()
        assert dev.wait(SECONDS) == 0


WINDOWS = """
import asyncio, multiprocessing, socket, os, subprocess, sys, tempfile
for name in ("fcntl", "uvloop", "resource", "pwd", "grp"):
    sys.modules[name] = None
del os.register_at_fork
sys.platform = "win32"
import heliograph
heliograph.connect, heliograph.connect_async, heliograph.Client
for start in ("local", "start"):
    try:
        getattr(heliograph, start)
    except heliograph.errors.UnsupportedError as error:
        assert "Linux or macOS" in str(error)
    else:
        raise AssertionError(start)
"""


def test_windows_imports_the_client_and_is_told_what_a_cluster_needs(environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WINDOWS], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
