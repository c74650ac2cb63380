"""Log lines that strangers cause and that may repeat without end: nothing that an outsider sends fills a disk.

``QuietLog`` logs so many in a period at most; ``SparseLog`` logs ever more rarely.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES_PER_MINUTE_MAX = 10  # of one kind, unless the caller says otherwise # I15
PERIOD_SECONDS = 60.0
LEFT_OUT = "%d further lines like the next were left out"


class QuietLog:
    """A logger whose warnings of one kind are limited. The next line after the limit says how many were left out.

    The callers name the kinds, so there are few.
    """

    def __init__(
        self,
        log: logging.Logger,
        now: Callable[[], float] = time.monotonic,
        *,
        lines: int = LINES_PER_MINUTE_MAX,
        period_seconds: float = PERIOD_SECONDS,
        left_out: str = LEFT_OUT,
    ) -> None:
        """
        Args:
            now: monotonic seconds.
            lines: the most of one kind that are logged in a period.
            left_out: the line that says how many were not; it has one ``%d``.
        """
        self._log = log
        self._now = now
        self._lines = lines
        self._period_seconds = period_seconds
        self._left_out = left_out
        self._kinds: dict[str, tuple[float, int]] = {}  # by kind: when its period began, and its lines since

    def warning(self, kind: str, text: str, *arguments: object) -> None:
        """Log a line of a kind, or count it as left out."""
        now = self._now()
        begun, count = self._kinds.get(kind, (now, 0))
        if now - begun >= self._period_seconds:
            if count > self._lines:
                self._log.warning(self._left_out, count - self._lines)
            begun, count = now, 0
        self._kinds[kind] = (begun, count + 1)
        if count < self._lines:
            self._log.warning(text, *arguments)


class SparseLog:
    """Logs the first, tenth, hundredth, ... occurrence of each kind of event.

    Args:
        log: where to.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[str, int] = {}  # by kind; the program has few kinds

    def warning(self, kind: str, text: str, *values: object, with_traceback: bool = False) -> None:
        """Log an event.

        Args:
            kind: what is counted.
            text: the line, with places for ``values``.
            with_traceback: whether to show the exception that is being handled.
        """
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if str(count).strip("0") == "1":
            suffix = "" if count == 1 else f" ({count} times by now)"
            self._log.warning(text + suffix, *values, exc_info=with_traceback)
