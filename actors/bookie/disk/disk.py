"""The disk as the bookie sees it: the only file that opens, writes or syncs files (RocksDB writes the index itself).

A failed sync poisons the disk: the kernel may have dropped the pages that it could not write and marked them clean, so
a second sync proves nothing. Every later write or sync is refused, the bookie exits, and a restart replays its journal.

Journals and entry logs are written past the kernel's page cache (O_DIRECT) from aligned memory, where the file system
supports it: data that is written once and synced at once gains nothing from the cache, and a page for each new block of
a growing file costs more processor time than the write itself. Large pieces of entry logs are read in the same way,
because a catch-up reader would evict what other readers read again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

from heliograph.actors.bookie.disk.io_priority import IoPriority
from heliograph.actors.errors import BookieStorageError, DirectoryLockedError, DiskPoisonedError
from heliograph.base.home import PRIVATE_FILE, make_private
from heliograph.base.system import files as system


class DiskFile(Protocol):
    """An open file."""

    @property
    def path(self) -> Path:
        """The path that the file was opened under."""

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of ``data``. It is durable only after ``sync``.

        Raises:
            BookieStorageError: the write failed. Any part of the data may be in the file.
            DiskPoisonedError: an earlier sync failed.
        """

    def write_durably(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of ``data`` and return when it is durable. Earlier writes may not be durable.

        Raises:
            DiskPoisonedError: this write, or an earlier sync, failed. The content of the file is unknown.
        """

    def read_at(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes; fewer only at the end of the file.

        Raises:
            BookieStorageError: the read failed.
        """

    def read_into(self, offset: int, memory: memoryview) -> int:
        """Fill ``memory`` from ``offset``; return the number of bytes read, fewer only at the end of the file.

        Raises:
            BookieStorageError: the read failed.
        """

    def sync(self) -> None:
        """Make everything that was written to this file durable.

        Raises:
            DiskPoisonedError: this sync or an earlier one failed. The content of the file is unknown.
        """

    def size(self) -> int:
        """Return the size of the file in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def allocate(self, size: int) -> None:
        """Have the file occupy its first ``size`` bytes, which read as zeros where nothing was written.

        Raises:
            BookieStorageError: there is no room.
        """

    def close(self) -> None:
        """Close the file without a sync. Idempotent."""


class Disk(Protocol):
    """Directories and files of a bookie. Paths are absolute."""

    @property
    def is_poisoned(self) -> bool:
        """Whether a sync has failed."""

    @property
    def io_priority(self) -> IoPriority:
        """The priority that journals have over large reads."""

    def open(self, path: Path, *, create: bool = False, is_direct: bool = False) -> DiskFile:
        """Open a file for reading and writing.

        Args:
            create: make the file, which must not exist.
            is_direct: only whole blocks will be written or read, from and into aligned memory (``BlockBuffer``).

        Raises:
            FileNotFoundError: there is no such file.
            BookieStorageError: the file cannot be opened or made.
        """

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or directory of this path."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def make_directory(self, directory: Path) -> None:
        """Make a directory and its parents durably. Do nothing if it exists."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename ``source`` to ``target``, replacing it. Durable after ``sync_directory``."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Durable after ``sync_directory``.

        Raises:
            BookieStorageError: the names are on two file systems, the file system has no links, or ``target`` exists.
        """

    def names_of(self, path: Path) -> int:
        """Return how many names the file has."""

    def remove(self, path: Path) -> None:
        """Remove a name of a file. Durable after ``sync_directory``. A missing file is no error."""

    def sync_directory(self, directory: Path) -> None:
        """Make durable which names are in the directory."""

    def space(self, directory: Path) -> tuple[int, int]:
        """Return free and total bytes of the directory's file system."""

    def lock(self, path: Path) -> DiskLock:
        """Lock a directory through a file in it, until the lock is released or the process ends.

        Raises:
            DirectoryLockedError: another process holds the lock.
        """


class DiskLock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Release the lock. Idempotent."""


class RealDisk:
    """The files of the operating system. The ``raw_`` methods are the system calls that may fail."""

    def __init__(self) -> None:
        self._poison: OSError | None = None
        self.is_poisoned = False
        self.io_priority = IoPriority()

    def open(self, path: Path, *, create: bool = False, is_direct: bool = False) -> DiskFile:
        self.check()
        try:
            fd = self.raw_open(path, create)
            if is_direct:
                system.set_direct(fd, is_direct=True)
            return RealFile(self, path, fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BookieStorageError(f"cannot open {path}: {error}") from error

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except OSError as error:
            raise BookieStorageError(f"cannot list {directory}: {error}") from error

    def make_directory(self, directory: Path) -> None:
        missing = [p for p in (directory, *directory.parents) if not p.exists()]
        try:
            make_private(directory)
        except OSError as error:
            raise BookieStorageError(f"cannot make the directory {directory}: {error}") from error
        for made in reversed(missing):
            self.sync_directory(made.parent)

    def rename(self, source: Path, target: Path) -> None:
        self.check()
        try:
            self.raw_rename(source, target)
        except OSError as error:
            raise BookieStorageError(f"cannot rename {source} to {target}: {error}") from error

    def link(self, source: Path, target: Path) -> None:
        self.check()
        try:
            self.raw_link(source, target)
        except OSError as error:
            raise BookieStorageError(f"cannot link {source} to {target}: {error}") from error

    def names_of(self, path: Path) -> int:
        try:
            return os.stat(path).st_nlink
        except OSError as error:
            raise BookieStorageError(f"cannot look at {path}: {error}") from error

    def remove(self, path: Path) -> None:
        self.check()
        try:
            self.raw_remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise BookieStorageError(f"cannot remove {path}: {error}") from error

    def sync_directory(self, directory: Path) -> None:
        self.check()
        try:
            self.raw_sync_directory(directory)
        except OSError as error:
            raise self.poisoned_by(error, directory) from error

    def space(self, directory: Path) -> tuple[int, int]:
        try:
            stat = os.statvfs(directory)
        except OSError as error:
            raise BookieStorageError(f"cannot read the free space of {directory}: {error}") from error
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize

    def lock(self, path: Path) -> DiskLock:
        return FileLock(path)

    def check(self) -> None:
        """Raise DiskPoisonedError if a sync has failed before."""
        if self.is_poisoned:
            raise DiskPoisonedError(f"a sync failed earlier ({self._poison}); restart the bookie to replay its journal")

    def poisoned_by(self, error: OSError, path: Path) -> DiskPoisonedError:
        """Refuse all further writes and syncs; return the error to raise."""
        self._poison, self.is_poisoned = error, True
        return DiskPoisonedError(f"sync of {path} failed: {error}")

    def raw_open(self, path: Path, create: bool) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), PRIVATE_FILE)

    def raw_write(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        try:
            return os.pwrite(fd, data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        system.set_direct(fd, is_direct=False)  # the device has larger blocks than ours: write through the page cache
        return os.pwrite(fd, data, offset)

    def raw_sync(self, fd: int, path: Path) -> None:
        system.sync_data(fd)

    def raw_write_durably(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        if (done := system.write_durably(fd, data, offset)) is not None:
            return done
        written = self.raw_write(fd, path, data, offset)  # the device has larger blocks, or the kernel no such flag
        self.raw_sync(fd, path)
        return written

    def raw_truncate(self, fd: int, path: Path, size: int) -> None:
        os.ftruncate(fd, size)

    def raw_allocate(self, fd: int, path: Path, size: int) -> None:
        system.allocate(fd, size)

    def raw_rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def raw_link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def raw_remove(self, path: Path) -> None:
        os.remove(path)

    def raw_sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            system.sync(fd)
        finally:
            os.close(fd)


class ReadOnlyDisk(RealDisk):
    """A disk for looking at a stopped bookie: no file can be made, changed or removed through it."""

    def raw_open(self, path: Path, create: bool) -> int:
        if create:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def raw_rename(self, source: Path, target: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(source))

    def raw_link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(source))

    def raw_remove(self, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def lock(self, path: Path) -> DiskLock:
        return FileLock(path, is_shared=True)


class RealFile:
    def __init__(self, disk: RealDisk, path: Path, fd: int) -> None:
        self._disk = disk
        self._path = path
        self._fd = fd

    @property
    def path(self) -> Path:
        return self._path

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        self._disk.check()
        view = memoryview(data)
        try:
            while view:
                written = self._disk.raw_write(self._fd, self._path, view, offset)
                offset += written
                view = view[written:]
        except OSError as error:
            raise BookieStorageError(f"cannot write {len(data)} bytes to {self._path}: {error}") from error

    def write_durably(self, offset: int, data: bytes | memoryview) -> None:
        disk = self._disk
        if disk.is_poisoned:
            disk.check()
        left = len(data)
        try:
            while left > 0:
                written = disk.raw_write_durably(self._fd, self._path, data, offset)
                offset += written
                left -= written
                if left > 0:
                    data = memoryview(data)[written:]
        except OSError as error:  # of the write or of the sync: the kernel does not say which
            raise disk.poisoned_by(error, self._path) from error

    def read_at(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        try:
            while length > 0:
                part = os.pread(self._fd, length, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                length -= len(part)
        except OSError as error:
            raise BookieStorageError(f"cannot read {self._path} at {offset}: {error}") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, offset: int, memory: memoryview) -> int:
        filled = 0
        try:
            while filled < len(memory):
                count = self._read_some(offset + filled, memory[filled:])
                if count == 0:
                    break
                filled += count
        except OSError as error:
            raise BookieStorageError(f"cannot read {self._path} at {offset}: {error}") from error
        return filled

    def _read_some(self, offset: int, memory: memoryview) -> int:
        try:
            return os.preadv(self._fd, [memory], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        system.set_direct(self._fd, is_direct=False)  # as in raw_write
        return os.preadv(self._fd, [memory], offset)

    def sync(self) -> None:
        self._disk.check()
        try:
            self._disk.raw_sync(self._fd, self._path)
        except OSError as error:
            raise self._disk.poisoned_by(error, self._path) from error

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        self._disk.check()
        try:
            self._disk.raw_truncate(self._fd, self._path, size)
        except OSError as error:
            raise BookieStorageError(f"cannot truncate {self._path}: {error}") from error

    def allocate(self, size: int) -> None:
        self._disk.check()
        try:
            self._disk.raw_allocate(self._fd, self._path, size)
        except OSError as error:
            raise BookieStorageError(f"cannot allocate {size} bytes for {self._path}: {error}") from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()  # readers share files; the last reference closes the file


class FileLock:
    """An ``flock`` on a file that holds the process id of its owner, for people.

    A shared lock is for tools that only read: it changes nothing, and keeps the bookie from starting meanwhile.
    """

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        self._path = path
        flags = os.O_RDONLY if is_shared else os.O_RDWR | os.O_CREAT
        try:
            self._fd = os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError as error:
            raise BookieStorageError(f"cannot open the lock file {path}: {error}") from error
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise DirectoryLockedError(
                f"{path.parent} is in use by process {owner or '?'}; stop it, or give this bookie other directories"
            ) from error
        if is_shared:
            return
        with contextlib.suppress(OSError):  # the number is only a hint; the lock itself is held
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def replace_file(disk: Disk, path: Path, content: bytes) -> None:
    """Replace the content of ``path`` durably. A crash or an error leaves the old content or the new one."""
    draft = path.with_name(path.name + ".new")
    disk.remove(draft)
    file = disk.open(draft, create=True)
    try:
        file.write_at(0, content)
        file.sync()
    finally:
        file.close()
    disk.rename(draft, path)
    disk.sync_directory(path.parent)


def read_file(disk: Disk, path: Path, bytes_max: int = 1 << 20) -> bytes:
    """Read a small file as a whole, up to ``bytes_max`` bytes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    file = disk.open(path)
    try:
        return file.read_at(0, bytes_max)
    finally:
        file.close()
