"""Ray's log monitor, which looks at the log files when one has changed.

Ray's looks at all of them ten times a second, so that drivers get the last lines of short tasks. The kernel tells of a
change at once.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from collections.abc import Callable, Iterable

IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x80, 0x100, 0x200
EVENTS_BYTES = 1 << 16  # read at once
# For so long after a change it looks as often as ever: where many files are opened in turns, Ray takes several rounds.
BUSY_SECONDS = 0.25
QUIET_SECONDS_MAX = 5.0  # between two looks where nothing is told, as of directories that are not watched


class DirectoryWatch:
    """Tells of changes to the files of directories, by inotify of Linux."""

    def __init__(self, directories: Iterable[str]) -> None:
        """
        Raises:
            OSError: the kernel refuses; of a directory that is not there, or when the user's watches are used up.
        """
        self._kernel = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        for directory in directories:
            mask = IN_MODIFY | IN_MOVED_TO | IN_CREATE | IN_DELETE
            self._checked(self._kernel.inotify_add_watch(self._descriptor, os.fsencode(directory), mask))
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait for a change that was not told yet; return whether there is one."""
        if not self._poll.poll(seconds * 1000):
            return False
        try:
            while os.read(self._descriptor, EVENTS_BYTES):
                pass
        except BlockingIOError:  # that was all
            return True
        return True

    def close(self) -> None:
        """Stop watching."""
        os.close(self._descriptor)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def pause(
    wait: Callable[[float], bool],
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Callable[[float], None]:
    """Return what the log monitor calls between two rounds: it sleeps as it is told to, or until a file has changed.

    Args:
        wait: waits for a change, for some seconds at most; returns whether there is one.
    """
    busy_until = now()

    def rest(seconds: float) -> None:
        nonlocal busy_until
        if now() < busy_until:
            sleep(seconds)
            limit = 0.0
        else:
            limit = QUIET_SECONDS_MAX
        if wait(limit):
            busy_until = now() + BUSY_SECONDS

    return rest


def look_when_told(logs_directory: str) -> None:
    """Have the log monitor that this process runs as its main program wait for changes where it sleeps.

    Raises:
        OSError: changes cannot be watched.
    """
    watch = DirectoryWatch([logs_directory])
    ordinary, rest = time.sleep, pause(watch.wait)

    def sleep(seconds: float) -> None:
        is_monitor = sys._getframe(1).f_globals.get("__name__") == "__main__"
        (rest if is_monitor else ordinary)(seconds)

    vars(time)["sleep"] = sleep
