"""The processes of a run: children that print their address, measured through /proc, ended by pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench.machine import ROOT

END_SECONDS_MAX = 20.0
IDLE_SECONDS = 3  # in a row
IDLE_SHARE_MAX = 0.15  # of all cores
IDLE_SECONDS_MAX = 30.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_CPU_CLOCK_OF_PROCESS = 2  # with the complement of a pid above its three bits, the clock that clock_getcpuclockid names


class Child:
    """A server or a load in a process of its own, ``python -m <module> <arguments>``.

    Its first line of output is ``said``: a server's address, a load's result. Use it as a context manager: the
    process has ended after the block, whatever happens.
    """

    def __init__(self, module: str, *arguments: object) -> None:
        self._command = [sys.executable, "-m", module, *map(str, arguments)]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Return the pid of the running process."""
        assert self._process is not None, "the child was started"
        return self._process.pid

    def start(self) -> Self:
        """Start the process without waiting for its output."""
        assert self._process is None, "a child is started once at a time"
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        return self

    def said(self) -> str:
        """Return the next line that the process prints; blocks until then.

        Raises:
            RuntimeError: the process ended without one; its error is on standard error.
        """
        assert self._process is not None, "the child was started"
        assert self._process.stdout is not None, "its output is a pipe"
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{' '.join(self._command[1:])} ended with code {self._process.wait(END_SECONDS_MAX)}")
        return line

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the process to end, and kill it when it does not."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)  # Popen does nothing to a process that has ended
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


def end_by_exception() -> None:
    """Make the first SIGTERM or SIGHUP end this process by an exception, so that its children are ended.

    Joining Ray installs Ray's own handlers, which abort the process: call this again afterwards.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    sys.exit(128 + number)


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of processor time, in user mode and in the kernel."""

    user: float
    kernel: float

    @property
    def total(self) -> float:
        """Both."""
        return self.user + self.kernel

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.user - earlier.user, self.kernel - earlier.kernel)


def cpu_time(*pids: int) -> CpuTime:
    """Return the processor time of these processes since their start, all threads together."""
    user = kernel = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text[text.rindex(")") + 2 :].split()  # the command name may hold spaces and brackets
        user += int(fields[11])
        kernel += int(fields[12])
    return CpuTime(user / TICKS_PER_SECOND, kernel / TICKS_PER_SECOND)


def precise_cpu_seconds(*pids: int) -> float:
    """Return the processor time of these processes; ``cpu_time`` counts in hundredths of a second, each process."""
    return sum(time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS) for pid in pids)


def bytes_written(pid: int) -> int:
    """Return the bytes that a process had written to disks since its start: files and journals, without the cache."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def memory_bytes(pid: int, field: str = "RssAnon") -> int:
    """Return a line of /proc/<pid>/status in bytes: ``RssAnon`` (allocated memory of the process), ``VmHWM``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/{pid}/status has no {field}")


def wait_until_idle() -> None:
    """Wait until the machine has had little to do for a few seconds, as when all that a cluster starts is up.

    Ray's dashboard starts beside the first work of a new cluster. Waits ``IDLE_SECONDS_MAX`` where the machine has
    other work.
    """
    most = IDLE_SHARE_MAX * (os.cpu_count() or 1) * TICKS_PER_SECOND
    deadline, quiet = time.monotonic() + IDLE_SECONDS_MAX, 0
    while quiet < IDLE_SECONDS and time.monotonic() < deadline:
        before = busy_ticks()
        time.sleep(1.0)
        quiet = quiet + 1 if busy_ticks() - before <= most else 0


def busy_ticks() -> int:
    """Return the processor time of all processes and the kernel since the machine started; ``TICKS_PER_SECOND``."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return user + nice + system + irq + softirq
