"""A process that runs `helio` commands one after the other and stays in the cluster's Ray, which is slow to join."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class CommandProcess:
    """Runs commands of one cluster, as `helio` in a shell would, but for the time that joining takes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()  # the cluster may be down by now, which Ray takes badly
        self._process.communicate()

    def run(self, *arguments: str | Path, code: int = 0) -> str:
        """Run a command, check its exit code and return what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["code"] == code, answer
        assert "Traceback" not in answer["stderr"]
        return str(answer["stdout"] if code == 0 else answer["stdout"] + answer["stderr"])

    def json(self, *arguments: str | Path, code: int = 0) -> Any:
        """Run a command with ``--json`` and return its result."""
        return json.loads(self.run(*arguments, "--json", code=code))


def _serve() -> None:
    from heliograph.cli.app import main
    from heliograph.client import discovery

    discovery.detach = lambda: None
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints is no answer
    for line in sys.stdin:
        sys.argv = ["helio", *json.loads(line)]
        printed, errors = io.StringIO(), io.StringIO()
        code: Any = 0
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        print(
            json.dumps({"code": code, "stdout": printed.getvalue(), "stderr": errors.getvalue()}),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    _serve()
