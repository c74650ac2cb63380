"""Processes, their memory and the boot of the machine: from /proc, or from the programs of macOS that know them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SECONDS_MAX = 10.0  # for a program of the system to answer
POLL_SECONDS = 0.5  # between two looks at a process, where nothing tells its end
_SIZES = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_OWN = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)  # without the pages of programs and libraries


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process as the kernel has it. ``started`` is a number that tells two processes of one pid apart."""

    state: str
    session: int
    started: int


def boot_id() -> str:
    """Return the id of this boot of the machine; pids and start times are valid within one boot only."""
    if _has_proc():
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return _printed("sysctl", "-n", "kern.bootsessionuuid").strip()


def process_state(pid: int) -> ProcessState | None:
    """Return the state of the process that has ``pid`` now, or None."""
    if not _has_proc():
        return _state_by_ps(pid)
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command in front may contain spaces and brackets
    return ProcessState(state=fields[0], session=int(fields[3]), started=int(fields[19]))


def living_pids() -> Iterator[int]:
    """Yield the pids of this machine's processes."""
    names = os.listdir(PROC) if _has_proc() else _printed("ps", "-axo", "pid=").split()
    yield from (int(name) for name in names if name.isdigit())


def command_of(pid: int) -> str:
    """Return the name of the program that a process runs; empty if there is no such process."""
    if not _has_proc():
        return os.path.basename(_printed("ps", "-o", "comm=", "-p", str(pid)).strip())
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "comm").read_text().strip()
    return ""


def descriptor_of(pid: int) -> int:
    """Return a descriptor that can be read once a process has ended; -1: the system has none.

    Raises:
        ProcessLookupError: there is no such process.
    """
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1


def wait_for_end(pid: int) -> None:
    """Return once a process of this user has ended."""
    with contextlib.suppress(ProcessLookupError):
        if (descriptor := descriptor_of(pid)) >= 0:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            waiting.poll()
            os.close(descriptor)
            return
    while process_state(pid) is not None:
        time.sleep(POLL_SECONDS)


def take_score_of(pid: int) -> None:
    """Ask Linux to end this process no sooner than another one if memory runs out; ignored if not permitted.

    Raises nothing: a process with fewer rights than the one that set its score keeps what it has.
    """
    with contextlib.suppress(OSError):
        (PROC / "self/oom_score_adj").write_text((PROC / str(pid) / "oom_score_adj").read_text())


def show_as(*words: str) -> None:
    """Have lists of processes show words in place of the command line, as far as it has room for them."""
    if not _has_proc():
        return
    fields = (PROC / "self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    shown = "\0".join(words).encode()[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def thread_count() -> int:
    """Return the number of threads of this process; of Python's threads only if the system does not tell."""
    return len(os.listdir(PROC / "self/task")) if _has_proc() else threading.active_count()


def thread_clock() -> Callable[[], float] | None:
    """Return what tells other threads the processor seconds of this one; None: the system does not tell them.

    It raises OSError once this thread has ended.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_left() -> tuple[int, int] | None:
    """Return the bytes of memory that programs could have, and all of the machine; None: the system has no figure."""
    if not _has_proc():
        return None
    sizes = dict(_SIZES.findall((PROC / "meminfo").read_text()))
    return int(sizes["MemAvailable"]) << 10, int(sizes["MemTotal"]) << 10


def own_bytes() -> int:
    """Return the bytes that this process alone uses; on macOS the most that it has used, with those of libraries."""
    if _has_proc():
        return sum(int(size) for size in _OWN.findall((PROC / "self/status").read_text())) << 10
    return resident_bytes()


def resident_bytes() -> int:
    """Return the bytes of this process in memory; on macOS the most that it has had."""
    if _has_proc():
        return int((PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _has_proc() -> bool:
    return (PROC / "self/stat").exists()


def _state_by_ps(pid: int) -> ProcessState | None:
    words = _printed("ps", "-o", "state=,lstart=", "-p", str(pid)).split(None, 1)
    try:
        return ProcessState(words[0][0], os.getsid(pid), int(time.mktime(time.strptime(words[1].strip()))))
    except (IndexError, ValueError, ProcessLookupError):  # it has ended
        return None


def _printed(*command: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    ran = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=SECONDS_MAX, check=False, errors="replace"
    )
    return ran.stdout
