"""Processes of this machine, named so that a recycled pid is never mistaken for the process it once was.

A process is named by its pid and its start time (in kernel ticks since boot) together. What a session leader started,
and all that these started, is found by the session id, which the kernel does not re-use while a member lives.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

KILL_AFTER_SECONDS = 3.0  # between SIGTERM and SIGKILL
GIVE_UP_AFTER_SECONDS = 15.0  # a process that survives SIGKILL for so long hangs in the kernel
_POLL_SECONDS = 0.05
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessName:
    """One process for all time, within one boot of the machine."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessName | None:
        """The process that has ``pid`` now, or None."""
        stat = _read_stat(pid)
        return None if stat is None else cls(pid, stat.start_ticks)

    def is_alive(self) -> bool:
        """Whether it runs still (a zombie does not)."""
        stat = _read_stat(self.pid)
        return stat is not None and stat.start_ticks == self.start_ticks and stat.state != "Z"


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    session: int
    start_ticks: int


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command before it may hold spaces and brackets
    return _Stat(state=fields[0], session=int(fields[3]), start_ticks=int(fields[19]))


def _living() -> Iterator[tuple[int, _Stat]]:
    for entry in os.listdir(_PROC):
        if entry.isdigit() and (stat := _read_stat(int(entry))) is not None and stat.state != "Z":
            yield int(entry), stat


def session_members(leader: ProcessName) -> list[ProcessName]:
    """Every living process of the session that ``leader`` started, the leader among them, even after its death."""
    now = _read_stat(leader.pid)
    if now is not None and now.start_ticks != leader.start_ticks:
        return []  # the pid was given out again, which the kernel does only when the whole session is gone
    return [ProcessName(pid, stat.start_ticks) for pid, stat in _living() if stat.session == leader.pid]


def end_session(leader: ProcessName) -> bool:
    """End all processes of a session: SIGKILL to the leader, SIGTERM to the rest, SIGKILL after 3 s.

    Returns:
        True when none is left; False when one survives SIGKILL.
    """
    _signal(leader, signal.SIGKILL)  # a Ray head that is asked politely drains for 30 s, and restarts what we end
    begun = time.monotonic()
    asked: set[ProcessName] = set()
    while members := session_members(leader):
        waited = time.monotonic() - begun
        if waited > GIVE_UP_AFTER_SECONDS:
            return False
        for member in members:
            if waited > KILL_AFTER_SECONDS:
                _signal(member, signal.SIGKILL)
            elif member not in asked:
                _signal(member, signal.SIGTERM)
                asked.add(member)
        time.sleep(_POLL_SECONDS)
    return True


def _signal(process: ProcessName, number: signal.Signals) -> None:
    if process.is_alive():
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def wait_until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    """Poll ``condition`` until it holds (True) or the time is over (False)."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
