"""A second way into a connection's socket, for large answers: straight from the memory that they lie in, on a thread.

The transport would copy each part and hold the interpreter while the kernel takes it, and everything else that the
bookie does, the acknowledgement of adds above all, would wait for that.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from concurrent.futures import Executor

PIECES_MAX = 64  # of one call: what lies in more of them is small, and copied together by the transport's way


class Outlet:
    """Of one connection. Whoever writes sees to it that the transport has nothing to write meanwhile."""

    def __init__(self) -> None:
        self._fd = -1
        self._writing: asyncio.Future[int] | None = None
        self._is_closed = False

    def write(
        self, transport: asyncio.Transport, thread: Executor, pieces: Sequence[bytes | memoryview]
    ) -> asyncio.Future[int] | None:
        """Hand to the kernel what it takes now; the result is how many bytes that is. The pieces must stay as they are
        until then. None when this way is not open.
        """
        if self._is_closed or len(pieces) > PIECES_MAX or transport.get_write_buffer_size():
            return None
        assert self._writing is None, "one frame at a time"
        if self._fd < 0:
            its: socket.socket = transport.get_extra_info("socket")
            try:
                self._fd = os.dup(its.fileno())  # its own number would be somebody else's once the transport is closed
            except OSError:
                return None  # the process may open no more files
        self._writing = asyncio.get_running_loop().run_in_executor(thread, _write, self._fd, pieces)
        self._writing.add_done_callback(self._written)
        return self._writing

    def close(self) -> None:
        """The connection ended. Idempotent."""
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
    except OSError:  # nothing is taken now, or never again: the transport will find out which
        return 0
