"""The processes of one session, as /proc shows them: memory by share, processor time, wakes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.process import cpu_time

KIB = 1024
OWN = ("part::", "heliograph-fork-server")  # titles of processes


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """What one process has used since its start, and what it holds now.

    Attributes:
        name: of the actor, or of the program.
        pss_bytes: its memory; of what is shared, its share.
        wakes: how often its threads were given a processor.
        is_own: it runs a part, or is what parts are forked from; all others are Ray's.
    """

    name: str
    pss_bytes: int
    cpu_seconds: float
    wakes: int
    is_own: bool = False


def sample(session: int) -> dict[int, ProcessSample]:
    """Return a sample of each process of a session, by process id."""
    found = {}
    for pid in _pids():
        with suppress(OSError, IndexError):  # it has ended
            text = Path(f"/proc/{pid}/stat").read_text()
            if int(text[text.rindex(")") + 2 :].split()[3]) == session:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                used = cpu_time(pid).total
                found[pid] = ProcessSample(name_of(words), pss_bytes(pid), used, _wakes(pid), words[0].startswith(OWN))
    return found


def _pids() -> Iterable[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def name_of(words: Sequence[str]) -> str:
    """Return what a process is called, by the words of its command line."""
    first = words[0].strip()
    if first.startswith(("ray::", "ray-")):  # of an actor, of a part of the dashboard
        return first.removeprefix("ray::").partition(" ")[0]
    if first.startswith("part::"):  # beside its actor
        return first.removeprefix("part::")
    if "python" not in Path(first).name:
        return Path(first).stem
    if programs := [word for word in words if word.endswith(".py")]:
        return Path(programs[0]).stem
    given = [word for word in words[1:] if word and not word.startswith("-")]
    return given[0].removeprefix("from ").partition(" ")[0] if given else Path(first).stem  # a module, or code


def pss_bytes(pid: int, kind: str = "Pss") -> int:
    """Return the memory of a process; of what is shared, its share.

    Args:
        kind: ``Pss``, or ``Pss_Anon``: without files, which other programs map, too.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * KIB
    return 0


def _wakes(pid: int) -> int:
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            lines = (thread / "status").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)
    return found
