"""Scenarios in an order that a seed draws, on one set of machines.

``python -m tests.machines.chaos --minutes 10`` prints its seed, what happens, and how long publishing stood still. Exit
code 1: a promise was broken, and the command that plays the same scenarios again is printed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machines.cluster import MachineCluster, machine_cluster
from tests.machines.disks import disks
from tests.machines.scenarios import SCENARIOS
from tests.machines.scenarios.stage import Stage
from tests.patience import START_SECONDS, patience

Played = tuple[str, float]  # name of a scenario, and for how long publishing stood still at most, in seconds

MACHINES = 4
SETTINGS = f"""
start_timeout_ms = {START_SECONDS * 1000}
lost_bookie_delay_ms = 5000
open_ledger_grace_ms = 2000
audit_interval_ms = 5000
session_timeout_ms = 5000
[bookie]
journal_file_bytes = 4194304
write_cache_bytes = 25165824
space_check_ms = 500
recovery_headroom_bytes = 8388608
"""


@contextmanager
def machines(directory: Path) -> Iterator[MachineCluster]:
    """Run a cluster for scenarios, with a small disk for each bookie, for the length of the block.

    The test is skipped where disks cannot be mounted.
    """
    directory.chmod(0o755)  # raylets look into it
    config = directory / "settings.toml"
    config.write_text(SETTINGS)
    homes = [directory / "home" / "data" / f"bookie-{number + 1}" for number in range(MACHINES)]
    with (
        disks(homes),
        machine_cluster(directory, MACHINES, config=str(config), broker_port="6650", gateway_port="8080") as made,
    ):
        yield made


def play(cluster: MachineCluster, name: str, seed: int, say: Callable[[str], None]) -> float:
    """Play one scenario by a seed, and return for how long publishing stood still at most, in seconds.

    Raises:
        AssertionError: a promise was broken; names the command that plays it again.
    """
    say(f"{name}, seed {seed}")
    stage = Stage(cluster, random.Random(seed), say)
    try:
        SCENARIOS[name](stage)
    except AssertionError as error:
        raise AssertionError(f"{error}\nto play it again: {command([name], seed)}") from error
    return max(stage.pauses)


def command(names: Sequence[str], seed: int) -> str:
    """Return the command that plays scenarios by a seed."""
    return f"python -m tests.machines.chaos --seed {seed} --only {' '.join(names)}"


def play_for(cluster: MachineCluster, seed: int, seconds: float, say: Callable[[str], None]) -> list[Played]:
    """Play scenarios in an order that a seed draws, each once before one comes again, until so much time has passed.

    Returns:
        their names, and for how long publishing stood still.
    """
    chance, played, begun = random.Random(seed), list[Played](), time.monotonic()
    left: list[str] = []
    while time.monotonic() < begun + seconds:
        left = left or chance.sample(sorted(SCENARIOS), len(SCENARIOS))
        name, own = left.pop(), chance.randrange(1 << 32)
        played.append((name, play(cluster, name, own, say)))
    return played


def run(directory: Path, seed: int, seconds: float, only: Sequence[str], say: Callable[[str], None]) -> list[Played]:
    """Play ``only``, or scenarios that the seed draws, on machines of their own."""
    with machines(directory) as cluster:
        say(f"{MACHINES} machines serve")
        if not only:
            return play_for(cluster, seed, seconds, say)
        return [(name, play(cluster, name, seed + number, say)) for number, name in enumerate(only)]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="time for scenarios")
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run; a new one without")
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(SCENARIOS), help="these, once each")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {line}", flush=True)

    again = f"make chaos MINUTES={arguments.minutes:g} SEED={seed}"
    print(f"seed {seed}; all of it again: {again}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="hgm-"))
    try:
        with patience():
            played = run(folder, seed, arguments.minutes * 60, arguments.only, say)
    except pytest.skip.Exception as skipped:
        print(f"not possible here: {skipped}")
        return 0
    except BaseException:
        traceback.print_exc()
        print(f"BROKEN, see {folder}; all of it again: {again}", flush=True)
        return 1
    shutil.rmtree(folder)
    for name, pause in played:
        print(f"{name:24} publishing stood still for {pause:5.1f} s at most")
    print(f"{len(played)} scenarios: nothing confirmed was lost, invented, out of order or delivered again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
