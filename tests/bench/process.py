"""Processes of a run: started as children that say their address, looked at through /proc, ended by pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench.machine import ROOT

END_SECONDS_MAX = 20.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Child:
    """``python -m <module> <arguments>``: a server or a load in a process of its own.

    Its first line of output is ``said``: a server's address, a load's result. Use it as a context manager; whatever
    happens, the process is gone afterwards.
    """

    def __init__(self, module: str, *arguments: object) -> None:
        self._command = [sys.executable, "-m", module, *map(str, arguments)]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None, "the child was started"
        return self._process.pid

    def start(self) -> Self:
        """Start it, without waiting for anything."""
        assert self._process is None, "a child is started once at a time"
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        return self

    def said(self) -> str:
        """The next line that it prints; blocks until then.

        Raises:
            RuntimeError: it ended without one; its own error is on standard error.
        """
        assert self._process is not None, "the child was started"
        assert self._process.stdout is not None, "its output is a pipe"
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{' '.join(self._command[1:])} ended with code {self._process.wait(END_SECONDS_MAX)}")
        return line

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and force it when it does not."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)  # does nothing to a process that has ended: Popen looks first
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None, "its output is a pipe"
        process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()


def end_in_order() -> None:
    """From now on the first SIGTERM or SIGHUP ends this process by an exception, so that what it started is ended.

    Joining Ray puts Ray's own handlers in place, which abort the process: call this again afterwards.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # the clean-up that follows is not to be cut short
    sys.exit(128 + number)


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of processor time, in the programs themselves and in the kernel for them."""

    user: float
    kernel: float

    @property
    def total(self) -> float:
        """Both."""
        return self.user + self.kernel

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.user - earlier.user, self.kernel - earlier.kernel)


def cpu_time(*pids: int) -> CpuTime:
    """What these processes have used since their start, all threads together."""
    user = kernel = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text[text.rindex(")") + 2 :].split()  # the command before it may hold spaces and brackets
        user += int(fields[11])
        kernel += int(fields[12])
    return CpuTime(user / _TICKS_PER_SECOND, kernel / _TICKS_PER_SECOND)


def memory_bytes(pid: int, field: str = "RssAnon") -> int:
    """A line of /proc/<pid>/status in bytes: ``RssAnon`` (what the process itself allocated and holds), ``VmHWM``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/{pid}/status has no {field}")
