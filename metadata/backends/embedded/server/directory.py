"""The server's directory: it has one owner at a time and keeps the port.

Every method blocks and belongs on a thread.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from heliograph.base.errors import ResourceError
from heliograph.base.home import PRIVATE_FILE, make_private
from heliograph.base.system.files import sync

LOCK_POLL_SECONDS = 0.05


class ServerDirectory:
    """A locked directory. The lock is the kernel's, so it ends with the process in any case."""

    def __init__(self, path: Path, lock_wait_ms: int) -> None:
        """Create the directory if it is missing, and lock it.

        Args:
            lock_wait_ms: how long to wait for another owner (such as a predecessor that is being killed) to end.

        Raises:
            ResourceError: it cannot be used, or another server has it.
        """
        self.path = path
        try:
            make_private(path)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError as error:
            raise ResourceError(f"cannot use the metadata directory {path}: {error}", field="directory") from error
        deadline = time.monotonic() + lock_wait_ms / 1000
        while not self._try_lock():
            if time.monotonic() >= deadline:
                os.close(self._lock)
                raise ResourceError(f"another metadata server uses {path}", field="directory")
            time.sleep(LOCK_POLL_SECONDS)

    @property
    def database(self) -> Path:
        return self.path / "store"

    def read_port(self) -> int:
        """Return the port of earlier starts, 0 before the first.

        Raises:
            ResourceError: the file cannot be read or holds no port.
        """
        try:
            return int((self.path / "port").read_text())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise ResourceError(f"cannot read {self.path / 'port'}: {error}", field="directory") from error

    def write_port(self, port: int) -> None:
        """Store the port durably.

        Raises:
            ResourceError: the disk failed.
        """
        fresh = self.path / "port.new"
        try:
            with fresh.open("w") as file:
                file.write(f"{port}\n")
                file.flush()
                sync(file.fileno())
            fresh.rename(self.path / "port")
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                sync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ResourceError(f"cannot write {self.path / 'port'}: {error}", field="directory") from error

    def release(self) -> None:
        os.close(self._lock)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
