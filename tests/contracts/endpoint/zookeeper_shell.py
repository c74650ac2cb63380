"""ZooKeeper's Java command line client, driven line by line."""

from __future__ import annotations

import subprocess
import threading
import time

from tests.contracts.metadata.zookeeper_server import JAR, java

MAIN_CLASS = "org.apache.zookeeper.ZooKeeperMain"
DEADLINE_SECONDS = 60


class ZooKeeperShell:
    """The process of ``zkCli.sh -server ADDRESS``. Leaving the context ends it."""

    def __init__(self, address: str) -> None:
        program = java()
        assert program is not None, "the caller checked that the shell is installed"
        self._process = subprocess.Popen(
            [program, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", str(JAR), MAIN_CLASS,
             "-server", address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._lines: list[str] = []
        self._seen = 0
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> ZooKeeperShell:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(DEADLINE_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()

    def say(self, line: str, expected: str = "") -> None:
        """Type a line. If an output is expected, wait for a line that contains it, after those of earlier calls."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        if expected:
            self.expect(expected)

    def expect(self, expected: str) -> None:
        """Wait for a line that contains ``expected``."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._grown:
            while True:
                for number in range(self._seen, len(self._lines)):
                    if expected in self._lines[number]:
                        self._seen = number + 1
                        return
                left = deadline - time.monotonic()
                assert left > 0, f"no {expected!r} after {self._lines[self._seen :]}"
                self._grown.wait(left)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._grown:
                self._lines.append(line.rstrip("\n"))
                self._grown.notify_all()
