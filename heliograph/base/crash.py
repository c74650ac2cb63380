"""The end of a process whose own code broke a promise; its supervisor starts a new one."""

from __future__ import annotations

import logging
import os

log = logging.getLogger(__name__)
EXIT_BROKEN = 70  # EX_SOFTWARE


def end_process(error: BaseException) -> None:
    """Log ``error``, then end this process at once, without clean-up: its state cannot be trusted."""
    log.critical("a promise of our own code is broken, the process ends: %r", error, exc_info=error)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(EXIT_BROKEN)
