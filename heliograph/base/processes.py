"""Processes of this machine, named so that a reused pid is never taken for the process that had it before.

A process is named by its pid together with its start time in kernel ticks since boot. The descendants of a session
leader are found by the session id, which the kernel does not reuse while a member of the session lives. A process whose
own code broke a promise, or a part that has failed, ends here; a supervisor starts it again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from heliograph.base.system.processes import ProcessState, living_pids, process_state

KILL_AFTER_SECONDS = 3.0  # between SIGTERM and SIGKILL
GIVE_UP_AFTER_SECONDS = 15.0  # a process that survives SIGKILL for so long is stuck in the kernel
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ProcessName:
    """The name of one process, unique within one boot of the machine."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessName | None:
        """Return the name of the process that has ``pid`` now, or None."""
        stat = process_state(pid)
        return None if stat is None else cls(pid, stat.started)

    def is_alive(self) -> bool:
        """Return whether the process still runs; a zombie does not."""
        stat = process_state(self.pid)
        return stat is not None and stat.started == self.start_ticks and stat.state != "Z"


def _living() -> Iterator[tuple[int, ProcessState]]:
    for pid in living_pids():
        if (state := process_state(pid)) is not None and state.state != "Z":
            yield pid, state


def session_members(leader: ProcessName) -> list[ProcessName]:
    """Return every living process of the session that ``leader`` started, also after the leader itself has ended."""
    now = process_state(leader.pid)
    if now is not None and now.started != leader.start_ticks:
        return []  # the pid was reused, which the kernel does only when the whole session has ended
    return [ProcessName(pid, stat.started) for pid, stat in _living() if stat.session == leader.pid]


def end_session(leader: ProcessName) -> bool:
    """End all processes of a session: SIGKILL to the leader, SIGTERM to the rest, SIGKILL after 3 s.

    Returns:
        True when no process is left; False when one survives SIGKILL for 15 s.
    """
    _signal(leader, signal.SIGKILL)  # on SIGTERM a Ray head drains for 30 s and restarts what this function ends
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


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Have SIGTERM and Ctrl-C wait for the end of a block, which may be short only. The main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in ENDING_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def wait_until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    """Poll ``condition`` until it holds, and return True; return False when the time is over."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


log = logging.getLogger(__name__)
EXIT_BROKEN = 70  # EX_SOFTWARE
# Callback that ends only the part whose constructor runs; None: the process has one part.
own_end: ContextVar[Callable[[], None] | None] = ContextVar("own_end", default=None)


def end_process(error: BaseException) -> None:
    """Log ``error``, then end this process at once, without clean-up: its state cannot be trusted."""
    log.critical("an assertion of Heliograph failed, the process ends: %r", error, exc_info=error)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(EXIT_BROKEN)


def end_of_part(status: int = 1) -> Callable[[], None]:
    """Return the function that a part calls on its event loop once it has failed. For its constructor.

    The process ends with ``status``. In a process that several parts share, only this part ends and starts again.
    """
    end = own_end.get()
    return (lambda: os._exit(status)) if end is None else end
