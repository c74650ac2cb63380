"""The script of a container (examples/deploy/docker/node.sh) on two machines: they start, stop and come again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.machines.network import Machine, network, wait_for
from tests.patience import START_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.full]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "deploy" / "docker" / "node.sh"
HELIO = f"""#!/bin/sh
exec {sys.executable} -c 'import sys; from heliograph.cli.app import main; sys.exit(main())' "$@"
"""
LABELS = (
    "heliograph.io/bookie=bookie-1,heliograph.io/metadata=true,heliograph.io/broker=true,heliograph.io/rack=r1",
    "heliograph.io/bookie=bookie-2,heliograph.io/rack=r2",
)


class Container:
    """What a container has of its own: an address, and the volume of its home."""

    def __init__(self, machine: Machine, directory: Path, number: int, head: str) -> None:
        self._machine = machine
        self._directory = directory / f"c{number}"
        programs = self._directory / "bin"
        programs.mkdir(parents=True)
        for name, text in (("helio", HELIO), ("hostname", f"#!/bin/sh\necho {machine.address}\n")):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
        self._environment = kept | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self._directory),
            "HELIOGRAPH_HOME": str(self._directory / "home"),
            "HELIOGRAPH_DATA_DIRECTORY": str(directory / "data"),
            "HELIOGRAPH_AUTH__ENABLED": "true",
            "HELIOGRAPH_BOOKIES": "2",
            "HELIOGRAPH_BROKERS": "1",
            "HELIOGRAPH_ENSEMBLE_SIZE": "2",
            "HELIOGRAPH_WRITE_QUORUM": "2",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "a" * 64,
            "LABELS": LABELS[number],
            **({"HEAD": head} if head else {}),
        }

    def start(self) -> subprocess.Popen[bytes]:
        """Run the script."""
        with (self._directory / "output").open("ab") as output:
            return subprocess.Popen(
                self._machine.command(["sh", str(SCRIPT)]), env=self._environment, stdout=output, stderr=output
            )

    def is_healthy(self) -> bool:
        """Return whether ``helio status`` says so."""
        done = subprocess.run(
            self._machine.command(["helio", "status", "--json"]),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode == 0 and bool(json.loads(done.stdout)["healthy"])

    @property
    def said(self) -> str:
        """The last that the script printed."""
        return (self._directory / "output").read_text(errors="replace")[-3000:]


def test_containers_start_together_and_come_again(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with network(2) as machines, ExitStack() as running:
        head = Container(machines[0], tmp_path, 0, "")
        other = Container(machines[1], tmp_path, 1, f"{machines[0].address}:6379")

        def start(container: Container) -> subprocess.Popen[bytes]:
            process = container.start()
            running.callback(process.wait)
            running.callback(process.kill)
            return process

        processes = [start(head), start(other)]
        try:
            wait_for(head.is_healthy, "both serve", START_SECONDS)
            processes[1].send_signal(signal.SIGTERM)
            assert processes[1].wait(START_SECONDS) == 0
            wait_for(lambda: not head.is_healthy(), "the bookie is away", START_SECONDS)
            processes[1] = start(other)
            wait_for(head.is_healthy, "the bookie is back", START_SECONDS)
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                assert process.wait(START_SECONDS) == 0
        except BaseException:
            print(head.said, other.said, sep="\n----\n")
            raise
