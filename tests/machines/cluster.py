"""A cluster over several machines: a raylet on each, and ``helio`` on the first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machines.network import Machine, network
from tests.patience import START_SECONDS

ROOT = Path(__file__).parents[2]
GCS_PORT = 6379
STARTS_MAX = 3  # of one raylet: Ray gives up its own start after 30 s, which a busy computer exceeds
OBJECT_STORE_BYTES = 100_000_000
_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_HELIO = (sys.executable, "-c", "import sys; from heliograph.cli.app import main; sys.exit(main())")


@dataclass
class MachineCluster:
    """A running cluster; bookie-n is pinned to the n-th machine, and brokers may run on each."""

    machines: list[Machine]
    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """What commands on the machines find in their environment."""
        given = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
        return given | {
            "HOME": str(self.directory / "user"),
            "PYTHONPATH": str(ROOT),
            "RAY_ADDRESS": f"{self.machines[0].address}:{GCS_PORT}",
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }

    def start_ray(self, number: int) -> None:
        """Start the raylet of a machine; that of the first is the head."""
        machine = self.machines[number]
        head = f"{self.machines[0].address}:{GCS_PORT}"
        place = (
            ("--head", f"--port={GCS_PORT}", f"--temp-dir={self.directory / 'ray'}", "--dashboard-host=127.0.0.1")
            if number == 0
            else (f"--address={head}",)
        )
        labels = f"heliograph.io/bookie=bookie-{number + 1},heliograph.io/broker=true"
        command = [
            *(*_RAY, "start", *place, f"--node-ip-address={machine.address}", "--disable-usage-stats"),
            *("--num-cpus=4", f"--object-store-memory={OBJECT_STORE_BYTES}", f"--labels={labels}"),
        ]
        for attempt in range(1, STARTS_MAX + 1):
            log = self.directory / f"ray-{number + 1}.log"
            with log.open("wb") as output:
                done = subprocess.run(
                    machine.command(command),
                    env=self.environment,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=START_SECONDS,
                    check=False,
                )
            if done.returncode == 0:
                return
            machine.power_off()
            assert attempt < STARTS_MAX, f"no raylet on machine {number + 1}: {log.read_text(errors='replace')[-2000:]}"

    def run(self, command: Sequence[str], *, on: int = 0, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on a machine to its end."""
        return subprocess.run(
            self.machines[on].command(command),
            env=self.environment,
            cwd=self.directory,
            input=given,
            capture_output=True,
            text=True,
            timeout=2 * START_SECONDS,
            check=False,
        )

    def helio(self, *arguments: str, on: int = 0, given: str = "") -> str:
        """Run ``helio`` on a machine and return what it printed."""
        done = self.run([*_HELIO, *arguments, "--home", str(self.directory / "home")], on=on, given=given)
        assert done.returncode == 0, f"helio {' '.join(arguments)}: {done.stderr[-2000:]}"
        return done.stdout

    def status(self, *, on: int = 0) -> dict[str, Any]:
        """Return what ``helio status`` shows, healthy or not."""
        command = [*_HELIO, "status", "--json", "--home", str(self.directory / "home")]
        done = self.run(command, on=on)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def machine_cluster(directory: Path, count: int, **settings: str) -> Iterator[MachineCluster]:
    """Run a cluster over so many machines for the length of the block, with a bookie on each."""
    with network(count) as machines:
        cluster = MachineCluster(machines, directory)
        (directory / "user").mkdir()
        for number in range(count):
            cluster.start_ray(number)
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        cluster.helio("up", "--host=node", "--insecure", f"--bookies={count}", *options)
        yield cluster
