"""Log lines that may repeat without end: what an outsider sends must not fill a disk."""

from __future__ import annotations

import logging


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
