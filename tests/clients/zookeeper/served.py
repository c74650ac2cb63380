"""``helio metadata serve`` as processes of their own, over each store; and servers of others beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from heliograph.cluster.ports import pick_free
from tests.clients.support.maven import build
from tests.contracts.endpoint.served_stores import STORES
from tests.contracts.metadata.zookeeper_server import ZooKeeperServer

# Where a test is enough on one store the others are for the full run. A real ZooKeeper shows what is true of it.
STORE_PARAMETERS = ("embedded", *(pytest.param(name, marks=pytest.mark.full) for name in ("etcd", "zookeeper")))
START_SECONDS_MAX = 120.0
END_SECONDS_MAX = 60.0
CONTAINER_CHECK_SECONDS = "0.5"
LOG_CHARACTERS_MAX = 6_000
_COMMAND = "from heliograph.cli import main; main()"


class Server:
    """A process that serves until it is ended. Its output is kept as its log."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}-{time.monotonic_ns()}.log"
        # It ends with the tests, however they end.
        prefix = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, *command], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        """Return what it wrote."""
        return self._log.read_text(errors="replace")

    def wait_for(self, words: str) -> None:
        """Wait until the server has written ``words``.

        Raises:
            AssertionError: it ended, or its time was over; with the log.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        while words not in self.log:
            assert self.process.poll() is None, f"{self.name} ended: {self.log[-LOG_CHARACTERS_MAX:]}"
            assert time.monotonic() < deadline, f"{self.name} never said {words!r}: {self.log[-LOG_CHARACTERS_MAX:]}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the process in good order."""
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


class Endpoint:
    """One ``helio metadata serve``; ``start`` again after ``kill`` serves the same store at the same port."""

    def __init__(self, url: str, folder: Path, options: Sequence[str] = ()) -> None:
        self._url = url
        self._options = options
        self._folder = folder
        self._port = pick_free()
        self._server: Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the process and wait until it serves."""
        assert self._server is None, "it is started once at a time"
        command = [sys.executable, "-c", _COMMAND, "metadata", "serve"]
        command += ["--url", self._url, "--zk-port", str(self._port)]
        command += ["--container-check-seconds", CONTAINER_CHECK_SECONDS, *self._options]
        self._server = Server("endpoint", command, self._folder)
        self._server.wait_for("protocol at ")

    def kill(self) -> None:
        """End the process as a crash does."""
        server, self._server = self._server, None
        assert server is not None, "it is started"
        server.kill()

    def stop(self) -> None:
        """End the process, if there is one."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()


@contextmanager
def endpoints(store: str, folder: Path, count: int = 1, options: Sequence[str] = ()) -> Iterator[list[Endpoint]]:
    """Serve an empty store by so many endpoints, started with ``options``, for the length of the block."""
    with ExitStack() as stack:
        url = stack.enter_context(STORES[store](folder))
        found = []
        for _ in range(count):
            endpoint = Endpoint(url, folder, options)
            stack.callback(endpoint.stop)
            endpoint.start()
            found.append(endpoint)
        yield found


def kill_or_start(pair: Sequence[Endpoint]) -> Callable[[dict[str, Any]], None]:
    """Return what answers a program that asks to ``kill the first`` of two endpoints, or to ``start the second``."""
    first, second = pair
    named = {"first": first, "second": second}

    def answer(question: dict[str, Any]) -> None:
        verb, _, name = question["ask"].partition(" the ")
        {"kill": Endpoint.kill, "start": Endpoint.start}[verb](named[name])

    return answer


@contextmanager
def zookeeper(folder: Path) -> Iterator[ZooKeeperServer]:
    """Run a real ZooKeeper 3.9 for the length of the block. Skip the test where there is none."""
    server = ZooKeeperServer(folder / "zookeeper", class_path=zookeeper_class_path())
    server.start()
    try:
        yield server
    finally:
        server.kill()


def zookeeper_class_path() -> str:
    """Return the class path of ZooKeeper 3.9. Skip the test where Maven cannot bring it."""
    return build(Path(__file__).parent / "server").class_path


@contextmanager
def serving(store: str, folder: Path) -> Iterator[str]:
    """Serve an empty store by one endpoint, or by a real one if it is named ``zookeeper``; yield the address."""
    if store == "zookeeper":
        with zookeeper(folder) as server:
            yield server.address
    else:
        with endpoints(store, folder) as (endpoint,):
            yield endpoint.address


def run_to_end(name: str, command: Sequence[str], folder: Path, *, seconds: float) -> str:
    """Run a command to its end and return what it wrote; an error of it fails the test."""
    done = subprocess.run(
        list(command), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
        env=os.environ, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{name} ended with {done.returncode}: {said[-LOG_CHARACTERS_MAX:]}"
    return said
