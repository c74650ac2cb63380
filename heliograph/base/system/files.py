"""Files and their syncs. macOS has no fdatasync, and its fsync leaves data in the disk's cache: F_FULLFSYNC does not.

The names are looked up when they are called, so that a test can take those of Linux away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY)
_ZEROS = bytes(1 << 20)
MOUNTS = Path("/proc/mounts")


def sync(fd: int) -> None:
    """Return when a file, or a directory, is on the disk with all that was written to it.

    Raises:
        OSError: it is not, and another sync would prove nothing.
    """
    if (full := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        try:
            fcntl.fcntl(fd, full)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:  # as on a file system of the network
                raise
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """Return when the data of a file is on the disk, and its length; times of change may not be.

    Raises:
        OSError: as ``sync`` raises it.
    """
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        sync(fd)


def write_durably(fd: int, data: bytes | memoryview, offset: int) -> int | None:
    """Write and sync in one call; return the bytes written, or None if the system or the file has no such call.

    Raises:
        OSError: the write or the sync failed.
    """
    if (flag := getattr(os, "RWF_DSYNC", None)) is None:
        return None
    try:
        return os.pwritev(fd, [data], offset, flag)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return None


def allocate(fd: int, size: int) -> None:
    """Have a new, empty file take ``size`` bytes of the disk.

    Raises:
        OSError: the disk has no room.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    for offset in range(os.fstat(fd).st_size, size, len(_ZEROS)):
        os.pwrite(fd, _ZEROS[: size - offset], offset)


def set_direct(fd: int, *, is_direct: bool) -> None:
    """Have a file written past the page cache, or through it; a file system that cannot is only slower."""
    with contextlib.suppress(OSError):
        if (direct := getattr(os, "O_DIRECT", None)) is not None:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | direct if is_direct else flags & ~direct)
        elif (no_cache := getattr(fcntl, "F_NOCACHE", None)) is not None:
            fcntl.fcntl(fd, no_cache, int(is_direct))


def file_system_of(directory: Path) -> str:
    """Return the kind of file system that a directory is on; empty if the system does not say."""
    found = ("", "")
    with contextlib.suppress(OSError):
        resolved = str(directory.resolve())
        for line in MOUNTS.read_text().splitlines():
            _, mount, kind, *_ = line.split(" ")
            below = mount.rstrip("/") + "/"
            if (resolved + "/").startswith(below) and len(mount) >= len(found[0]):
                found = (mount, kind)
    return found[1]


def forget_cached(fd: int) -> None:
    """Drop a synced file from the page cache if the system can do so; the next read is then from the disk."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
