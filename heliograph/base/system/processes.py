"""Processes, their memory and the boot of the machine: from /proc, or from the programs of macOS that know them."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SECONDS_MAX = 10.0  # for a program of the system to answer
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
