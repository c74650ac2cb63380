"""The environment of those that are not in the lock file, and how a worker and its load run as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.machine import ROOT
from tools.laboratory.foreign.servers import Unavailable

OURS = "Heliograph"
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
LOAD_SECONDS_MAX = 900.0
Found = dict[str, float]  # what a load says of a run


def python_of(kind: str) -> str:
    """Return the interpreter that runs a program of a kind.

    Raises:
        Unavailable: The environment was not made.
    """
    if kind == "heliograph":
        return sys.executable
    if not PYTHON.exists():
        raise Unavailable("`make bench-peers` makes .venv-peers, which it needs")
    return str(PYTHON)


def measured(programs: str, kind: str, address: str, count: int) -> Found:
    """Run a worker, and return what the load beside it says.

    Args:
        programs: Module with both; it takes the kind, ``worker`` or ``load``, the address and a count.

    Raises:
        Unavailable: The environment was not made, or the load failed.
    """
    command = [python_of(kind), "-m", programs, kind]
    with _running([*command, "worker", address, str(count)]):
        load = [*command, "load", address, str(count)]
        said = subprocess.run(load, cwd=ROOT, capture_output=True, text=True, timeout=LOAD_SECONDS_MAX, check=False)
    if said.returncode:
        raise Unavailable(f"its load failed: {said.stderr.strip()[-500:]}")
    found: Found = json.loads(said.stdout.splitlines()[-1])
    return found


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        try:
            yield
        finally:
            worker.kill()
