"""The end of a process whose own code broke a promise, or of a part that has failed; a supervisor starts it again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextvars import ContextVar

log = logging.getLogger(__name__)
EXIT_BROKEN = 70  # EX_SOFTWARE
# What ends the part alone whose constructor runs; None: the process has one part.
own_end: ContextVar[Callable[[], None] | None] = ContextVar("own_end", default=None)


def end_process(error: BaseException) -> None:
    """Log ``error``, then end this process at once, without clean-up: its state cannot be trusted."""
    log.critical("a promise of our own code is broken, the process ends: %r", error, exc_info=error)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(EXIT_BROKEN)


def end_of_part(status: int = 1) -> Callable[[], None]:
    """Return what a part calls once it has failed, on its event loop. For its constructor.

    The process ends with ``status``. In a process that several parts share, only this part ends and starts again.
    """
    end = own_end.get()
    return (lambda: os._exit(status)) if end is None else end
