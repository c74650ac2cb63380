"""Take away what Linux alone has from this process. A program imports it first, and then runs as on a Mac."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any

LINUX_NAMES = (
    *("fdatasync", "RWF_DSYNC", "posix_fallocate", "O_DIRECT", "posix_fadvise"),
    *("sched_getaffinity", "eventfd", "pidfd_open", "memfd_create"),
)
FULL_FSYNC = 51  # macOS's number
full_syncs = 0  # that were asked for
_fcntl: Any = fcntl.fcntl


def _like_macos(fd: Any, command: int, argument: Any = 0) -> Any:
    global full_syncs
    if command != FULL_FSYNC:
        return _fcntl(fd, command, argument)
    full_syncs += 1
    return os.fsync(fd)


def take_away() -> None:
    """Remove the names, /proc and the credentials of sockets, and add F_FULLFSYNC."""
    from heliograph.base.system import files, processes

    for name in LINUX_NAMES:
        delattr(os, name)
    del time.pthread_getcpuclockid
    for name in ("SO_PEERCRED", "SOCK_NONBLOCK", "SOCK_CLOEXEC"):
        delattr(socket, name)
    fcntl.F_FULLFSYNC = FULL_FSYNC  # type: ignore[attr-defined]
    fcntl.fcntl = _like_macos
    processes.PROC = Path("/nonexistent")
    files.MOUNTS = Path("/nonexistent")
