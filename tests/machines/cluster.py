"""A cluster over several machines: a raylet on each, which ``helio up`` starts on the first."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph.base.home import ClusterHome
from heliograph.cluster.head.storage import RECONNECT_SECONDS, RECONNECT_VARIABLE
from heliograph.cluster.labels import ANY, BOOKIE, BROKER, METADATA
from heliograph.metadata.credentials import with_secrets
from heliograph.ray.process import PROGRAM
from tests.machines.network import Machine, network, wait_for
from tests.patience import START_SECONDS

ROOT = Path(__file__).parents[2]
GCS_PORT = 6379
BROKER_MACHINES = (1, 2)  # the metadata store is on machine 0
BROKER_PORTS = (6650, 6652)
OBJECT_STORE_BYTES = 100_000_000
_RAY = (sys.executable, *PROGRAM)
_HELIO = (sys.executable, "-c", "import sys; from heliograph.cli.app import main; sys.exit(main())")
_NODE_ID = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="error")
print(next(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == sys.argv[2]))
"""


@dataclass
class MachineCluster:
    """A running cluster; bookie-n is pinned to the n-th machine, and brokers run on ``BROKER_MACHINES``.

    Attributes:
        spare: a machine that is no part of it; one that joins by ``join_spare`` may have any bookie.
    """

    machines: list[Machine]
    spare: Machine
    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)  # options of ``helio up``
    _in_turns: threading.Lock = field(default_factory=threading.Lock)

    @property
    def head(self) -> str:
        """The address where nodes join Ray."""
        return f"{self.machines[0].address}:{GCS_PORT}"

    @property
    def service_url(self) -> str:
        """Every address that a broker may have."""
        hosts = [self.machines[number].address for number in BROKER_MACHINES]
        return "pulsar://" + ",".join(f"{host}:{port}" for host in hosts for port in BROKER_PORTS)

    @property
    def data(self) -> Path:
        """Where each bookie has its directory, as every machine sees it."""
        return self.directory / "home" / "data"

    @property
    def environment(self) -> dict[str, str]:
        """What commands on the machines find in their environment."""
        given = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
        return given | {
            "HOME": str(self.directory / "user"),
            "PYTHONPATH": str(self._installed),
            "RAY_AUTH_MODE": "disabled",
            RECONNECT_VARIABLE: str(RECONNECT_SECONDS),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_agent_register_timeout_ms": str(START_SECONDS * 1000),  # as helio gives it to nodes that it starts
        }

    @property
    def _installed(self) -> Path:
        """The link to the code that every machine has installed."""
        return self.directory / "code"

    def install(self, code: Path | None = None) -> None:
        """Have every machine's next processes run other code; None: the present code."""
        following = self._installed.with_suffix(".next")
        following.symlink_to(code or ROOT)
        following.replace(self._installed)

    def up(self) -> str:
        """Have the first machine start Ray's head and the parts that are missing, and return what it said."""
        done = self.run(self._up)
        assert done.returncode == 0, f"helio up: {done.stderr[-2000:]}"
        return done.stderr

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have ``helio up --watch`` run on the first machine for the length of the block."""
        with (self.directory / "watch.log").open("wb") as log:
            watching = subprocess.Popen(
                self.machines[0].command([*self._up, "--watch"]),
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                wait_for(lambda: b"Next:" in Path(log.name).read_bytes(), "helio up has ended its start", START_SECONDS)
                yield
                assert watching.poll() is None, f"it ended: {Path(log.name).read_text(errors='replace')[-2000:]}"
            finally:
                watching.terminate()
                watching.wait()

    @property
    def _up(self) -> list[str]:
        options = [
            # Lean: nothing here asks the dashboard, whose processes take as long to start as all bookies.
            *("--lean", "--host=node", "--insecure", f"--ray-port={GCS_PORT}", f"--ray-labels={self._labels(0)}"),
            f"--bookies={len(self.machines)}",
            *(f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()),
        ]
        return [*_HELIO, "up", *self._home, *options]

    def join(self, number: int) -> None:
        """Start the raylet of a machine other than the first."""
        self._join(self.machines[number], str(number + 1), self._labels(number))

    def join_spare(self) -> None:
        """Start the raylet of the spare machine, whose label offers room for a bookie."""
        self._join(self.spare, "spare", f"{BOOKIE}={ANY}")

    def drain_spare(self) -> None:
        """Have Ray drain the node of the spare machine."""
        found = self.run([sys.executable, "-c", _NODE_ID, self.head, self.spare.address])
        assert found.returncode == 0, f"no node at {self.spare.address}: {found.stderr[-2000:]}"
        command = [*_RAY, "drain-node", f"--address={self.head}", f"--node-id={found.stdout.split()[-1]}"]
        reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=it leaves"]
        done = self.run([*command, *reason])
        assert done.returncode == 0, f"ray drain-node: {done.stderr[-2000:]}"

    def _join(self, machine: Machine, name: str, labels: str) -> None:
        command = [
            *(*_RAY, "start", f"--address={self.head}", f"--node-ip-address={machine.address}"),
            # The default is the directory of the head, which `helio up` deletes once that has ended.
            *(f"--temp-dir={self.directory / f'r{name}'}", f"--labels={labels}"),
            *("--num-cpus=4", f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"),
            "--include-log-monitor=false",
        ]
        log = self.directory / f"ray-{name}.log"
        if self._is_joined(machine, command, log):
            return
        # Ray gives up its own start after 30 s, which a busy computer exceeds; it is rather done with one at a time.
        with self._in_turns:
            try:
                wait_for(lambda: self._is_joined(machine, command, log), "its raylet is started", START_SECONDS)
            except AssertionError as error:
                raise AssertionError(f"machine {name}: {error}: {log.read_text(errors='replace')[-2000:]}") from None

    def _is_joined(self, machine: Machine, command: Sequence[str], log: Path) -> bool:
        """Try once to start a raylet; return whether it runs."""
        wait_for(self._is_joinable, "the head's GCS listens", START_SECONDS)
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
        if done.returncode != 0:
            machine.power_off()
        return done.returncode == 0

    def start(self) -> None:
        """Start the cluster: the head and, as soon as they can join it, all other nodes at once."""
        with ThreadPoolExecutor(len(self.machines)) as pool:
            up = pool.submit(self.up)
            wait_for(lambda: up.done() or self._has_head(), "the head is started", START_SECONDS)
            started = not up.done() or up.exception() is None
            joining = [pool.submit(self.join, number) for number in range(1, len(self.machines)) if started]
            up.result()
            for joined in joining:
                joined.result()

    def run(
        self, command: Sequence[str], *, on: int = 0, given: str = "", seconds: float = 2 * START_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine to its end."""
        return subprocess.run(
            self.machines[on].command(command),
            env=self.environment,
            cwd=self.directory,
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def helio(self, *arguments: str, on: int = 0, given: str = "", seconds: float = 2 * START_SECONDS) -> str:
        """Run ``helio`` on a machine and return what it printed."""
        done = self.run([*_HELIO, *arguments, *self._home], on=on, given=given, seconds=seconds)
        assert done.returncode == 0, f"helio {' '.join(arguments)}: {done.stderr[-2000:]}"
        return done.stdout

    def metadata_url(self) -> str:
        """Return the URL of the metadata store, for the test's own process."""
        home = ClusterHome(self.directory / "home")
        state = home.load()
        assert state is not None, "the cluster was started"
        return with_secrets(state.metadata_url, home.secret())

    def status(self, *, on: int = 0) -> dict[str, Any]:
        """Return what ``helio status`` shows, healthy or not."""
        done = self.run([*_HELIO, "status", "--json", *self._home], on=on)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _has_head(self) -> bool:
        """Return whether the head has its own raylet. Others that start before compete with it for the processors."""
        state = ClusterHome(self.directory / "home").load()
        if state is None or not state.ray_address or state.ray_process is None:
            return False
        return state.ray_process.is_alive()

    def _is_joinable(self) -> bool:
        with suppress(OSError), socket.create_connection((self.machines[0].address, GCS_PORT), 1):
            return True
        return False

    def _labels(self, number: int) -> str:
        found = [f"{BOOKIE}=bookie-{number + 1}"]
        if number in BROKER_MACHINES:
            found.append(f"{BROKER}={ANY}")
        if number < int(self.settings.get("metadata_members", 0)):
            found.append(f"{METADATA}={ANY}")
        return ",".join(found)

    @property
    def _home(self) -> list[str]:
        return ["--home", str(self.directory / "home")]


@contextmanager
def machine_cluster(directory: Path, count: int, **settings: str) -> Iterator[MachineCluster]:
    """Run a cluster over so many machines for the length of the block, with a bookie on each."""
    with network(count + 1) as machines:
        cluster = MachineCluster(machines[:count], machines[count], directory, settings)
        (directory / "user").mkdir()
        cluster.install()
        cluster.start()
        yield cluster
