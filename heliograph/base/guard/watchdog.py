"""Ends a process whose event loop does not turn, with the stacks of all its threads in its log.

A loop that is blocked serves nobody, and a part that is silent but alive is replaced late. The watchdog is a thread
that asks the loop to run a function, again and again. When the loop has not run it for the limit, the process ends.

Time in which the watchdog itself did not run does not count against the loop: the process was stopped (SIGSTOP), the
machine slept, or other programs had all of the processor. So one step counts for at most twice the pause between two.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

STUCK_SECONDS_MAX = 60.0  # default of HELIOGRAPH_WATCHDOG_SECONDS: longest time in which a loop does not turn
STUCK_SECONDS_VARIABLE = "HELIOGRAPH_WATCHDOG_SECONDS"  # 1 to 3600; 0: no watchdog
STEPS_PER_LIMIT = 60
_EXIT_CODE = 70  # EX_SOFTWARE

log = logging.getLogger(__name__)


class LoopWatchdog:
    """The watchdog of one event loop. Start it on the loop; it ends with the process, or by ``stop``."""

    def __init__(self, stuck_seconds: float, on_stuck: Callable[[float], None] | None = None) -> None:
        """
        Args:
            stuck_seconds: longest time in which the loop does not turn.
            on_stuck: called on the watchdog's thread with that time; None: the process ends.
        """
        assert stuck_seconds > 0, "a limit"
        self._stuck_seconds = stuck_seconds
        self._step_seconds = stuck_seconds / STEPS_PER_LIMIT
        self._on_stuck = on_stuck or end_process_with_stacks
        self._has_turned = threading.Event()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Watch the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer. Idempotent."""
        self._is_stopped.set()

    def _watch(self) -> None:
        assert self._loop is not None, "started on a loop"
        silent_seconds = 0.0
        self._ask()
        while True:
            begun = time.monotonic()
            if self._is_stopped.wait(self._step_seconds) or self._loop.is_closed():
                return
            if self._has_turned.is_set() or not self._loop.is_running():
                silent_seconds = 0.0
                self._has_turned.clear()
                self._ask()
                continue
            # A longer step was none of the loop's: this thread did not run, so the loop could not, either.
            silent_seconds += min(time.monotonic() - begun, 2 * self._step_seconds)
            if silent_seconds >= self._stuck_seconds:
                self._on_stuck(silent_seconds)
                return

    def _ask(self) -> None:
        assert self._loop is not None, "started on a loop"
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._has_turned.set)


def watchdog_of_environment() -> LoopWatchdog | None:
    """Return the watchdog that the environment asks for; None if it asks for none.

    A value that is no number or out of range counts as the default, and is logged.
    """
    text = os.environ.get(STUCK_SECONDS_VARIABLE, "")
    try:
        seconds = float(text) if text else STUCK_SECONDS_MAX
    except ValueError:
        seconds = -1.0
    if seconds == 0:
        return None
    if not 1 <= seconds <= 3_600:
        log.warning("%s is %r: 0, or 1 to 3600 seconds; taken as %d", STUCK_SECONDS_VARIABLE, text, STUCK_SECONDS_MAX)
        seconds = STUCK_SECONDS_MAX
    return LoopWatchdog(seconds)


def end_process_with_stacks(silent_seconds: float) -> None:
    """Write the stacks of all threads to stderr, which is the process's log, and end it. Ray starts it again."""
    with contextlib.suppress(Exception):
        log.critical("the event loop has not turned for %.1f s: the process ends", silent_seconds)
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
    os._exit(_EXIT_CODE)
