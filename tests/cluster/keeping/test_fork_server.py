"""The server that processes of parts are forked from: the code of now, and nothing that nobody uses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from heliograph.cluster.keeping.channel import connected, fork_server_name
from tests.cluster.support.live_cluster import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SECONDS = 60.0
PROGRAM = """
from heliograph.cluster.keeping import fork_server
fork_server.IDLE_SECONDS = {idle_seconds}
fork_server.POLL_SECONDS = 0.05
fork_server.main()
"""


@dataclass
class Served:
    """A server, and a process in the place of the raylet."""

    raylet: subprocess.Popen[bytes]
    name: bytes
    code: Path

    def start(self, idle_seconds: float = SECONDS) -> None:
        program = PROGRAM.format(idle_seconds=idle_seconds)
        command = [sys.executable, "-c", program, self.name.hex(), str(self.raylet.pid), "-" * 200]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(self.code)}, check=True)

    def pids(self) -> list[int]:
        """Return the servers that were started here and have not ended."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str(self.code).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def ask(self, *modules: str) -> str:
        """Have a process forked which gets no plan, and so fails. Return what is written to its standard error."""
        told, read = socket.socketpair(), os.pipe()
        unix = connected(self.name, socket.SOCK_SEQPACKET)
        assert unix is not None
        asked = {"title": ["part::probe", "n"], "niceness": 0, "modules": modules}
        with unix, told[0], told[1]:
            socket.send_fds(unix, [json.dumps(asked).encode()], [told[1].fileno(), read[1], read[1]])
        os.close(read[1])
        with open(read[0]) as errors:
            return errors.read()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "probe_code.py").write_text("VALUE = 1\n")
    raylet = subprocess.Popen(["sleep", "600"])
    made = Served(raylet, fork_server_name("node", uuid.uuid4().hex), tmp_path)
    try:
        yield made
    finally:
        raylet.kill()
        raylet.wait()
        wait_for(lambda: not made.pids(), SECONDS, "the server outlives the raylet")


def test_there_is_one_of_a_name_and_it_ends_with_the_raylet(served: Served) -> None:
    served.start()
    [first] = served.pids()
    served.start()
    assert served.pids() == [first]
    title = Path(f"/proc/{first}/cmdline")
    wait_for(lambda: title.read_text().startswith("heliograph-fork-server\0"), SECONDS, "it shows another title")
    os.kill(served.raylet.pid, signal.SIGKILL)
    wait_for(lambda: not served.pids(), SECONDS, "the server outlives the raylet")


def test_a_file_that_has_changed_ends_it(served: Served) -> None:
    served.start()
    first = served.pids()
    assert "EOFError" in served.ask("probe_code")  # of the plan that it does not get
    assert "EOFError" in served.ask("probe_code")
    assert first[0] in served.pids()
    (served.code / "probe_code.py").write_text("VALUE = 222\n")
    wait_for(lambda: not served.pids(), SECONDS, "it would fork what it has loaded of old")
    served.start()
    assert "EOFError" in served.ask("probe_code")


def test_what_cannot_be_loaded_is_told_to_the_caller(served: Served) -> None:
    served.start()
    assert "No module named 'missing_code'" in served.ask("missing_code")
    wait_for(lambda: not served.pids(), SECONDS, "the next one may be able to")


def test_one_that_nobody_uses_ends(served: Served) -> None:
    served.start(idle_seconds=0.1)
    wait_for(lambda: not served.pids(), SECONDS, "it stays")
