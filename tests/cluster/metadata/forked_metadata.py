"""An embedded metadata server that can be SIGKILLed and started again within milliseconds.

A parent that has imported everything forks a server for each life, so that a hundred lives cost seconds. As a program:
``python -m tests.cluster.metadata.forked_metadata <directory>``; each input line asks for one server, whose process id
and address it prints.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from heliograph.cluster.ports import pick_free
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer

SESSION_TIMEOUT_MS_MIN = 100


class ForkedMetadata:
    """The server of one directory, which keeps its address over all its lives. A context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = ""
        self.pid = 0

    def __enter__(self) -> ForkedMetadata:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.metadata.forked_metadata", str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._parent.kill()
        self._parent.wait()
        for pipe in (self._parent.stdin, self._parent.stdout):
            assert pipe is not None, "a pipe was asked for"
            pipe.close()

    def start(self) -> None:
        """Start the server and wait until it serves."""
        assert self._parent.stdin is not None, "a pipe was asked for"
        assert self._parent.stdout is not None, "a pipe was asked for"
        print("start", file=self._parent.stdin, flush=True)
        pid, address = self._parent.stdout.readline().split()
        assert self.address in ("", address), "a restart listens at the same address"
        self.pid, self.address = int(pid), address

    def kill(self) -> None:
        """Kill the server."""
        os.kill(self.pid, signal.SIGKILL)


async def _serve(directory: Path) -> None:
    limits = ServerLimits(session_timeout_ms_min=SESSION_TIMEOUT_MS_MIN)
    port = 0 if (directory / "port").exists() else pick_free()  # one that stays free between two lives
    server = EmbeddedServer(directory, "127.0.0.1", port, limits=limits)
    await server.start()
    print(os.getpid(), server.address, flush=True)
    await asyncio.Event().wait()


def _main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    while sys.stdin.readline():
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(_serve(Path(sys.argv[1])))


if __name__ == "__main__":
    _main()
