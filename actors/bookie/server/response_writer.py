"""Writes large answers to a connection's socket on a thread, directly from the memory that they were read into.

The transport would copy each part and hold the interpreter lock while the kernel copies it, and all other work of the
bookie, above all the acknowledgement of adds, would wait.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from concurrent.futures import Executor

PIECES_MAX = 64  # of one call; an answer in more pieces is small, and goes through the transport


class ResponseWriter:
    """The response writer of one connection. The caller writes nothing through the transport meanwhile."""

    def __init__(self) -> None:
        self._fd = -1
        self._writing: asyncio.Future[int] | None = None
        self._is_closed = False

    def write(
        self, transport: asyncio.Transport, thread: Executor, pieces: Sequence[bytes | memoryview]
    ) -> asyncio.Future[int] | None:
        """Write as much as the kernel takes now; return a future of the number of bytes, None if impossible.

        The pieces must not change until the future is done.
        """
        if transport.get_extra_info("ssl_object") is not None:
            return None  # only the transport can encrypt
        if self._is_closed or len(pieces) > PIECES_MAX or transport.get_write_buffer_size():
            return None
        assert self._writing is None, "one frame at a time"
        if self._fd < 0:
            its: socket.socket = transport.get_extra_info("socket")
            try:
                self._fd = os.dup(its.fileno())  # a number of our own: the transport's may be reused once it is closed
            except OSError:
                return None  # the process may open no more files
        self._writing = asyncio.get_running_loop().run_in_executor(thread, _write, self._fd, pieces)
        self._writing.add_done_callback(self._written)
        return self._writing

    def close(self) -> None:
        """Close the duplicated file descriptor when no write runs. Idempotent."""
        self._is_closed = True
        if self._writing is None and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _written(self, _: asyncio.Future[int]) -> None:
        self._writing = None
        if self._is_closed:
            self.close()


def _write(fd: int, pieces: Sequence[bytes | memoryview]) -> int:
    try:
        return os.writev(fd, pieces)
    except OSError:  # the kernel takes nothing now, or never again; the transport finds out which
        return 0
