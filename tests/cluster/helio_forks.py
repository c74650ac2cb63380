"""``helio`` for tests that run dozens of commands: each in a process of its own, forked from one that has it imported.

As a program: each line on its input is one command (see ``_Command``), whose exit code is printed when it has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict


class _Command(TypedDict):
    arguments: list[str]
    environment: dict[str, str]
    files: list[str]  # its standard input, output and errors


class HelioForks:
    """Runs commands, one at a time. A context manager."""

    def __enter__(self) -> HelioForks:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._parent.stdin, self._parent.stdout):
            assert pipe is not None, "a pipe was asked for"
            pipe.close()
        self._parent.wait()

    def run(
        self, arguments: Sequence[str | Path], environment: Mapping[str, str], stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        assert self._parent.stdin is not None, "a pipe was asked for"
        assert self._parent.stdout is not None, "a pipe was asked for"
        with tempfile.TemporaryDirectory(prefix="helio-") as folder:
            files = [Path(folder) / name for name in ("in", "out", "errors")]
            files[0].write_text(stdin)
            words = [str(argument) for argument in arguments]
            command = _Command(arguments=words, environment=dict(environment), files=[str(file) for file in files])
            print(json.dumps(command), file=self._parent.stdin, flush=True)
            code = int(self._parent.stdout.readline())
            return subprocess.CompletedProcess(words, code, files[1].read_text(), files[2].read_text())


def _run(command: _Command) -> None:
    for number, file in enumerate(command["files"]):
        opened = os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - until the process ends
    sys.argv = ["helio", *command["arguments"]]
    os.environ.clear()
    os.environ.update(command["environment"])

    from heliograph.cli import main

    main()


def _main() -> None:
    # What the commands import, before the first of them: most of the time that they take.
    import ray.util.state  # noqa: F401

    import heliograph.cli.app
    import heliograph.cluster.lifecycle
    import heliograph.cluster.status  # noqa: F401

    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            _run(json.loads(line))
            return
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _main()
