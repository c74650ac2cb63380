"""A child process that never outlives this process, however this process ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heliograph.base.errors import ResourceError

LINE_BYTES_MAX = 4_096  # of its output; longer lines are cut  # I15
_GUARD = Path(__file__).with_name("die_with_parent.py")


class GuardedChild:
    """One run of a program. Its output is given to a callback, line by line, on a thread.

    The thread makes the process and waits for it: the kernel kills a guarded process when the *thread* that made it
    ends.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[str], None]) -> None:
        """
        Args:
            command: the program's absolute path, and its arguments.
            environment: of the program.
            on_line: called with each line of its output.
        """
        self._command = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *command]
        self._environment = dict(environment)
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    async def start(self) -> asyncio.Future[int]:
        """Start the program. Return the future of its exit code; a signal is a negative number.

        Raises:
            ResourceError: this machine starts no process.
        """
        assert self._process is None, "a run is started once"
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        ended: asyncio.Future[int] = loop.create_future()
        threading.Thread(target=self._run, args=(loop, started, ended), name="guarded child", daemon=True).start()
        await started
        return ended

    def signal(self, number: int) -> None:
        """Send a signal to the program, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def _run(self, loop: asyncio.AbstractEventLoop, started: asyncio.Future[None], ended: asyncio.Future[int]) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            failure = ResourceError(f"{self._command[5]} cannot be started: {error.strerror}")
            _tell(loop, started, lambda: started.set_exception(failure))
            return
        _tell(loop, started, lambda: started.set_result(None))
        with self._process as process:
            assert process.stdout is not None, "a pipe"
            while line := process.stdout.readline(LINE_BYTES_MAX):
                self._on_line(line.decode(errors="replace").rstrip())
            code = process.wait()
        _tell(loop, ended, lambda: ended.set_result(code))


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], then: Callable[[], None]) -> None:
    def tell() -> None:
        if not future.done():
            then()

    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(tell)
