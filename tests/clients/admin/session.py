"""pulsar-admin for many commands in one JVM, driven by the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

COMMAND_SECONDS_MAX = 60.0
END_SECONDS_MAX = 5.0


class AdminSession:
    """A running tool. Calling it runs one command."""

    def __init__(self, process: subprocess.Popen[str], errors: Any) -> None:
        self._process = process
        self._errors = errors

    def __call__(self, *words: str) -> str:
        """Run a command and return what it printed.

        Raises:
            AssertionError: it failed, or did not end in time.
        """
        answer = self._run(words)
        assert answer["ok"], f"pulsar-admin {' '.join(words)}: {answer['err'][-1_500:]}{answer['out'][-500:]}"
        return str(answer["out"]).strip()

    def json(self, *words: str) -> Any:
        """Run a command and return what it printed, read as JSON."""
        return json.loads(self(*words))

    def refused(self, *words: str) -> str:
        """Run a command that fails, and return all that it printed."""
        answer = self._run(words)
        assert not answer["ok"], f"pulsar-admin {' '.join(words)} succeeded: {answer['out'][-500:]}"
        return str(answer["out"]) + str(answer["err"])

    def _run(self, words: Sequence[str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watch = threading.Timer(COMMAND_SECONDS_MAX, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(json.dumps(list(words)) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            self._errors.seek(0)
            log = self._errors.read()[-2_000:]
            raise AssertionError(f"pulsar-admin {' '.join(words)} did not answer in {COMMAND_SECONDS_MAX} s: {log}")
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


@contextlib.contextmanager
def admin_session(command: Sequence[str]) -> Iterator[AdminSession]:
    """Run the tool for the duration of the block."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            yield AdminSession(process, errors)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # the program ends at the end of its input
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS_MAX)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
