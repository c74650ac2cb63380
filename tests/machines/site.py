"""Machines on each of which a user has a home of his own: one starts a cluster, and others join it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machines.network import Machine, network
from tests.patience import START_SECONDS, patience

ROOT = Path(__file__).parents[2]
HELIO = (sys.executable, "-c", "import sys; from heliograph.cli.app import main; sys.exit(main())")
TOKEN = "a" * 64
PORT = 6379


@dataclass
class Site:
    """Machines with a user and a home each; the first one started a cluster."""

    machines: list[Machine]
    directory: Path

    @property
    def head_home(self) -> Path:
        """The home of the cluster; the second machine has its own disk in this place."""
        return self.directory / "user-0" / "home"

    @property
    def head_address(self) -> str:
        """The address that ``helio join`` takes."""
        return f"{self.machines[0].address}:{PORT}"

    def disk(self, on: int = 1) -> Path:
        """What another machine than the first has in the place of ``head_home``."""
        return self.directory / f"disk-{on}"

    def run(self, on: int, *arguments: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``helio`` on a machine as its user."""
        command, variables = self.command(on, *HELIO, *arguments), self.environment(on) | environment
        return subprocess.run(
            command, env=variables, cwd=self.directory, input=given, capture_output=True, text=True,
            timeout=2 * START_SECONDS, check=False,
        )  # fmt: skip

    def command(self, on: int, *command: str) -> list[str]:
        """Return what runs a command on a machine, which sees its own disk."""
        return self.machines[on].command([*self._own_disk(on), *command])

    def environment(self, on: int) -> dict[str, str]:
        """Return the environment of the user of a machine."""
        user = self.directory / f"user-{on}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
        mine = {"HOME": str(user), "PYTHONPATH": str(ROOT), "HELIOGRAPH_HOME": str(user / "home")}
        return kept | mine | {"RAY_USAGE_STATS_ENABLED": "0"}

    def _own_disk(self, on: int) -> list[str]:
        mounted = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'  # each command has mounts of its own
        return ["sh", "-c", mounted, "sh", str(self.disk(on)), str(self.head_home)] if on else []

    def helio(self, on: int, *arguments: str, given: str = "") -> str:
        """Run ``helio`` to its good end and return what it printed."""
        done = self.run(on, *arguments, given=given)
        assert done.returncode == 0, f"helio {' '.join(arguments)}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        print(done.stdout)
        return done.stdout

    def refused(self, on: int, *arguments: str, **environment: str) -> str:
        """Run ``helio``, which has to fail; return the reason."""
        done = self.run(on, *arguments, **environment)
        assert done.returncode != 0, done.stdout
        print(done.stderr)
        return done.stderr

    def up(self) -> None:
        """Start the cluster on the first machine."""
        self.helio(
            0, "up", "--tls=auto", "--host=node", "--insecure", f"--ray-port={PORT}", "--bookies=2", "--brokers=2",
            "--ensemble-size=2", "--write-quorum=2", "--ack-quorum=2", "--lean",
        )  # fmt: skip

    def parts_on(self, machine: Machine) -> dict[str, str]:
        """Return the addresses of the parts that a machine has, by their names."""
        found = {actor["name"]: str(actor["address"]) for actor in self.status()["actors"]}
        return {name: address for name, address in found.items() if f"//{machine.address}:" in address}

    def status(self) -> dict[str, Any]:
        """Return what ``helio status`` shows on the first machine, healthy or not."""
        found: dict[str, Any] = json.loads(self.run(0, "status", "--json").stdout)
        return found


@contextmanager
def site_of(directory: Path, machines: int) -> Iterator[Site]:
    """Start a cluster on the first of some machines."""
    directory.chmod(0o755)
    with patience(), network(machines) as made:
        site = Site(made, directory)
        for number in range(machines):
            token = directory / f"user-{number}" / ".ray" / "auth_token"
            token.parent.mkdir(parents=True)
            token.write_text(TOKEN)
            if number:
                site.disk(number).mkdir(mode=0o700)
        site.up()
        yield site
