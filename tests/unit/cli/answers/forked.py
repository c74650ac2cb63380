"""`helio` commands, each in a fork of a process that has loaded the command line: as in a shell, but for that time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType


class ForkedCommands:
    """Runs one command after the other. None sees what another one changed in its process."""

    def __init__(self, directory: Path) -> None:
        self._streams = [directory / name for name in ("stdin", "stdout", "stderr")]
        command = [sys.executable, "-m", __name__, *map(str, self._streams)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> ForkedCommands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run(
        self, *arguments: str, environment: Mapping[str, str], stdin: str = "", before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run ``before``, a program, and then a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._streams[0].write_text(stdin)
        self._process.stdin.write(json.dumps([arguments, dict(environment), before]) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, *(each.read_text() for each in self._streams[1:]))


def _serve(streams: list[str]) -> None:
    from heliograph.cli.app import main

    for line in sys.stdin:
        arguments, environment, before = json.loads(line)
        process = os.fork()
        if not process:
            for number, path in enumerate(streams):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if number else 0)), number)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["helio", *arguments]
            exec(before, {})
            main()  # and end the process
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
