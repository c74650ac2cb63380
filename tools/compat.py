"""The tests of other releases: ``make compat`` runs a share of the cluster tests with other Rays and Pythons.

Each pair has an environment of its own below ``.venv-compat/``, with the wheel of this tree, its extra ``cluster`` and
what the tests need. The tests are copied beside it, so that they find the installed wheel and not the sources.
A Python that this machine lacks is named and skipped.

    python -m tools.compat                                     # the oldest and the newest Ray and Python
    python -m tools.compat --ray 2.55.1 --python 3.12 -- -k messaging
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from heliograph.client.ray_release import NEWEST_TESTED, OLDEST

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".venv-compat"
RAYS = (f"{OLDEST}.0", f"{NEWEST_TESTED}.0")
PYTHONS = ("3.11", "3.13")
TEST_REQUIREMENTS = ("pytest>=8.3", "pytest-timeout>=2.3", "anyio>=4.12", "hypothesis>=6.120", "hatchling>=1.27")
DEPLOYMENT = "tests/cluster/deployment"
KEEPING = "tests/cluster/keeping"
# Start, publish, consume, kills of each kind of part, placement by labels, `helio`, a lost head, jobs, Ray Client; and
# what Ray does where memory runs short.
SHARE = (
    f"{DEPLOYMENT}/test_start_in_ray.py",
    f"{DEPLOYMENT}/test_your_ray.py",
    f"{DEPLOYMENT}/test_hosting.py",
    f"{DEPLOYMENT}/test_messaging.py",
    *(
        f"{DEPLOYMENT}/test_cli.py::test_{name}"
        for name in (
            "no_port_of_a_cluster_on_loopback_is_reached_from_elsewhere",
            "status_shows_every_actor",
            "topics_live_and_die",
            "lines_go_in_and_come_out",
            "data_outlives_a_stop_and_a_start",
            "a_lost_head_is_started_again_with_what_was_kept",
            "down_leaves_no_process_and_no_data",
        )
    ),
    f"{KEEPING}/test_kept.py",
    *(
        f"{KEEPING}/test_short_memory.py::test_{name}_ends_no_part[lean]"
        for name in ("a_program_beside_ray_that_fills_the_machine", "an_actor_that_leaks", "a_task_that_leaks")
    ),
)
DROPPED = ("HELIOGRAPH_", "RAY_", "PYTHON", "VIRTUAL_ENV", "PYTEST_")  # variables of the caller's environment


@dataclass(frozen=True)
class Pair:
    """One release of Ray on one of Python."""

    ray: str
    python: str

    @property
    def directory(self) -> Path:
        return CACHE / f"{self.ray}-{self.python}"

    @property
    def interpreter(self) -> Path:
        return self.directory / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """Return the variables of a user who has activated the environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
        return {**kept, "FULL": "1", "PATH": f"{self.directory / 'bin'}{os.pathsep}{kept.get('PATH', '')}"}


def interpreter_of(version: str) -> str | None:
    """Return the interpreter of a Python release on this machine: in the path, or one that pyenv has."""
    if (found := shutil.which(f"python{version}")) and _runs(found, version):
        return found
    known = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python{version}"))
    return next((str(each) for each in reversed(known) if _runs(str(each), version)), None)


def _runs(interpreter: str, version: str) -> bool:
    asked = "import sys, ensurepip; print('.'.join(map(str, sys.version_info[:2])))"
    ran = subprocess.run([interpreter, "-c", asked], capture_output=True, text=True, check=False)
    return ran.stdout.strip() == version


def build_wheel() -> Path:
    """Build the wheel of this tree."""
    target = CACHE / "wheel"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    program = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(target)], cwd=ROOT, check=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def install(pair: Pair, interpreter: str, wheel: Path) -> None:
    """Make the environment of a pair, or bring the one that is there up to date."""
    if not pair.interpreter.exists():
        subprocess.run([interpreter, "-m", "venv", str(pair.directory)], check=True)
    pip = [str(pair.interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [f"heliograph-ray[cluster] @ {wheel.as_uri()}", f"ray[default]=={pair.ray}", *TEST_REQUIREMENTS]
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + repr(wanted).encode()).hexdigest()
    ready = pair.directory / ".ready"
    if not ready.exists() or ready.read_text() != digest:
        subprocess.run([*pip, *wanted], check=True, env=pair.variables())
        ready.write_text(digest)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", str(wheel)], check=True, env=pair.variables())


def run(pair: Pair, arguments: list[str]) -> int:
    """Run the share of the tests, and return pytest's exit code."""
    work = pair.directory / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(ROOT / "tests", work / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", work)
    command = [str(pair.interpreter), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    return subprocess.run([*command, *(arguments or SHARE)], cwd=work, env=pair.variables(), check=False).returncode


def main() -> int:
    """Run all pairs; the exit code is 1 if a test of one failed."""
    parser = argparse.ArgumentParser(description="run a share of the cluster tests with other Rays and Pythons")
    parser.add_argument("--ray", action="append", help="a release such as 2.55.1; several times for several")
    parser.add_argument("--python", action="append", help="such as 3.12; several times for several")
    parser.add_argument("arguments", nargs="*", help="of pytest, after --; without them the share of this module runs")
    options = parser.parse_args()
    wheel = build_wheel()
    outcomes: dict[str, str] = {}
    for python in options.python or PYTHONS:
        interpreter = interpreter_of(python)
        for ray in options.ray or RAYS:
            pair = Pair(ray, python)
            name = f"Ray {ray} on Python {python}"
            if interpreter is None:
                outcomes[name] = "skipped: this machine has no such Python"
                continue
            print(f"== {name}", flush=True)
            install(pair, interpreter, wheel)
            outcomes[name] = "passed" if run(pair, options.arguments) == 0 else "FAILED"
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    return int("FAILED" in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
