"""Log lines that strangers cause, so many a minute at most: nothing that an outsider sends fills a disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES_PER_MINUTE_MAX = 10  # of one kind
_MINUTE_SECONDS = 60.0


class QuietLog:
    """A logger whose warnings of one kind are limited. The next line after the limit says how many were left out.

    The callers name the kinds, so there are few.
    """

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._kinds: dict[str, tuple[float, int]] = {}  # by kind: when its minute began, and its lines since

    def warning(self, kind: str, text: str, *arguments: object) -> None:
        """Log a line of a kind, or count it as left out."""
        now = self._now()
        begun, count = self._kinds.get(kind, (now, 0))
        if now - begun >= _MINUTE_SECONDS:
            if count > LINES_PER_MINUTE_MAX:
                self._log.warning("%d further lines like the next were left out", count - LINES_PER_MINUTE_MAX)
            begun, count = now, 0
        self._kinds[kind] = (begun, count + 1)
        if count < LINES_PER_MINUTE_MAX:
            self._log.warning(text, *arguments)
