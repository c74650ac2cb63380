"""Ends a process whose event loop does not turn, with the stacks of all its threads in its log.

A loop that is blocked serves nobody, and a part that is silent but alive is replaced late. The watchdog is a thread
that asks the loop to run a function, again and again. When the loop has not run it for the limit, the process ends.

Time in which the watchdog itself did not run does not count against the loop: the process was stopped (SIGSTOP), the
machine slept, or other programs had all of the processor. So one step counts for at most twice the pause between two.

A second thread finds single steps of the loop that take long, for the metrics and the log, and what they are. It looks
ten times a second how much processor time the thread of the loop has used. A loop that waits costs the reading of one
clock. A loop that was busy for half of the time is asked for a turn; if that takes long, a step is under way, and its
stack says which. So steps above 0.2 s are found always, shorter ones mostly, and those that wait for something other
than the processor not at all.
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
import traceback
from collections import deque
from collections.abc import Callable
from types import FrameType

from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.system.processes import thread_clock

STUCK_SECONDS_MAX = 60.0  # default of HELIOGRAPH_WATCHDOG_SECONDS: longest time in which a loop does not turn
STUCK_SECONDS_VARIABLE = "HELIOGRAPH_WATCHDOG_SECONDS"  # 1 to 3600; 0: no watchdog
STEPS_PER_LIMIT = 60
_EXIT_CODE = 70  # EX_SOFTWARE
LOOK_SECONDS = 0.1
BUSY_SHARE = 0.5  # of the time between two looks
TURN_SECONDS = 0.02  # in which a loop without a long step turns
LONG_SECONDS = 0.1  # of a step that is logged and counted
KEPT_SECONDS = 60.0  # for which the longest step is told
LOCKED = "code that holds Python's lock"

log = logging.getLogger(__name__)
quiet = QuietLog(log)


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


class LoopWatch:
    """Watches one event loop. Start it on the loop; it ends with the process, or by ``stop``.

    Args:
        now: seconds of a monotonic clock.

    Attributes:
        long_steps: above LONG_SECONDS, since the start.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.long_steps = 0
        self._now = now
        self._steps: deque[tuple[float, float]] = deque()  # when they ended, and lengths, which fall; of KEPT_SECONDS
        self._is_stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched = 0  # the loop's thread

    def start(self) -> None:
        if (clock := thread_clock()) is None:
            return
        self._loop, self._watched = asyncio.get_running_loop(), threading.get_ident()
        _watches[self._loop] = self
        threading.Thread(target=self._watch_to_end, args=(self._loop, clock), name="loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer. Idempotent."""
        self._is_stopped.set()
        if self._loop is not None and _watches.get(self._loop) is self:
            del _watches[self._loop]

    @property
    def longest_seconds(self) -> float:
        """The length of the longest step of the last minute that was found; 0: none was."""
        since = self._now() - KEPT_SECONDS
        return max((seconds for ended, seconds in list(self._steps) if ended >= since), default=0.0)

    def _watch_to_end(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        with contextlib.suppress(OSError):  # the loop's thread has ended
            self._watch(loop, clock)
        self.stop()

    def _watch(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        looked, used = time.monotonic(), clock()
        while not self._is_stopped.is_set() and not loop.is_closed():
            time.sleep(LOOK_SECONDS)  # which costs a third of a wait for the event
            now, uses = time.monotonic(), clock()
            passed, grown = now - looked, uses - used
            looked, used = now, uses
            if grown < BUSY_SHARE * LOOK_SECONDS:
                continue
            if passed > LOOK_SECONDS + LONG_SECONDS and grown > 0.9 * passed:
                self.note(grown, LOCKED)  # this thread could not run, although the loop's did
            else:
                self._ask(loop, min(grown, passed))
            looked, used = time.monotonic(), clock()

    def _ask(self, loop: asyncio.AbstractEventLoop, before: float) -> None:
        """Wait for a turn of the loop; ``before`` is how long the step may have lasted by now."""
        began, has_turned, what = time.monotonic(), threading.Event(), ""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(has_turned.set)
        if not has_turned.wait(TURN_SECONDS):
            what = self._what()
            while not has_turned.wait(1.0):
                if self._is_stopped.is_set() or not loop.is_running():
                    return
        took = time.monotonic() - began
        self.note(took + before if what else took, what)

    def note(self, seconds: float, what: str) -> None:
        """Note a step that has ended."""
        now = self._now()
        while self._steps and self._steps[-1][1] <= seconds:
            self._steps.pop()
        while self._steps and self._steps[0][0] < now - KEPT_SECONDS:
            self._steps.popleft()
        self._steps.append((now, seconds))
        if seconds >= LONG_SECONDS and what:
            self.long_steps += 1
            quiet.warning("step", "a step of the event loop took %.2f s: %s", seconds, what)

    def _what(self) -> str:
        """Return which of our functions the loop's thread is in, and the innermost one."""
        frame: FrameType | None = sys._current_frames().get(self._watched)  # documented, its name notwithstanding
        if frame is None:
            return LOCKED
        stack = traceback.extract_stack(frame)
        shown = [each for each in stack if "/heliograph/" in each.filename][-2:]
        if stack[-1] not in shown:
            shown.append(stack[-1])
        return " > ".join(f"{each.name} ({each.filename.rpartition('/')[2]}:{each.lineno})" for each in shown)


_watches: dict[asyncio.AbstractEventLoop, LoopWatch] = {}  # of the loops of this process that are watched


def watch_running_loop() -> LoopWatch:
    """Find the long steps of the running loop from now on, and return what does. Idempotent."""
    watch = _watches.get(asyncio.get_running_loop())
    if watch is None:
        watch = LoopWatch()
        watch.start()
    return watch


def running_loop_watch() -> LoopWatch | None:
    """Return the watch of the running loop; None: nothing watches it, or no loop is running."""
    with contextlib.suppress(RuntimeError):
        return _watches.get(asyncio.get_running_loop())
    return None


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
