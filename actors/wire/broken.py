"""What happens when a promise of our own code is broken: the process ends, and its supervisor starts a sound one."""

from __future__ import annotations

import logging
import os

_log = logging.getLogger(__name__)
EXIT_BROKEN = 70  # EX_SOFTWARE


def end_process(error: BaseException) -> None:
    """Log why, then end this process at once: its state is not to be trusted, and clean-up would rely on it."""
    _log.critical("a promise of our own code is broken, the process ends: %r", error, exc_info=error)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(EXIT_BROKEN)
