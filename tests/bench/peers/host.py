"""A bare log: the least work of a server that gives a bookie's guarantee.

``python -m tests.bench.peers.host thread|loop <file>``. Frames of ``u32 length | payload`` are appended to one
preallocated file; each is acknowledged, once it is durable, with 4 bytes. A frame of length 0 is echoed immediately.
There are no entry ids, no checksums, no index, no reads, no replay and one client: the additional time of a real
bookie is the cost of those.

Two logs do so. ``thread``: one thread writes and syncs whatever gathered during the last sync, which is best for many
frames in flight. ``loop``: the event loop writes and syncs what was received, in one call, which is best for one.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, cast

from typing_extensions import override

from tests.bench.serving import serve

FILE_BYTES = 256 << 20  # written in a circle
LOOP_FILE_BYTES = 64 << 20  # of the log on the loop, of which several run at once
BLOCK_BYTES = 4 << 10  # what the log on the loop writes is a multiple of it
ACK = b"\0\0\0\1"
LENGTH_BYTES = 4


class Appender(Protocol):
    """What makes frames durable for a connection."""

    def append(self, parts: list[bytes], on_durable: Callable[[int], None]) -> None:
        """Take frames; ``on_durable`` is called on the loop with the number of durable frames."""

    def stop(self) -> None:
        """End."""


class BareLog(Appender):
    """The file and its thread."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        for offset in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(self._fd, bytes(1 << 20), offset)
        os.fsync(self._fd)
        self._loop = asyncio.get_running_loop()
        self._condition = threading.Condition()
        self._parts: list[bytes] = []
        self._frames = 0
        self._offset = 0
        self._stopping = False
        self._on_durable: Callable[[int], None] = lambda frames: None
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @override
    def append(self, parts: list[bytes], on_durable: Callable[[int], None]) -> None:
        with self._condition:
            self._parts += parts
            self._frames += len(parts)
            self._on_durable = on_durable
            self._condition.notify()

    @override
    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()
        os.close(self._fd)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._parts and not self._stopping:
                    self._condition.wait()
                if self._stopping:
                    return
                parts, self._parts = self._parts, []
                frames, self._frames = self._frames, 0
                on_durable = self._on_durable
            data = b"".join(parts)
            if self._offset + len(data) > FILE_BYTES:
                self._offset = 0
            os.pwrite(self._fd, data, self._offset)
            os.fdatasync(self._fd)
            self._offset += len(data)
            self._loop.call_soon_threadsafe(on_durable, frames)


class LoopLog(Appender):
    """A file that the event loop itself writes, past the page cache, with the sync in the same call."""

    def __init__(self, path: Path) -> None:
        self._fd = _open_direct(path)
        self._block = mmap.mmap(-1, 1 << 20)  # aligned, as writes past the page cache have to be
        for offset in range(0, LOOP_FILE_BYTES, len(self._block)):
            os.pwrite(self._fd, self._block, offset)
        os.fsync(self._fd)
        self._offset = 0

    @override
    def append(self, parts: list[bytes], on_durable: Callable[[int], None]) -> None:
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        size = -(-len(data) // BLOCK_BYTES) * BLOCK_BYTES
        assert size <= len(self._block), "only small frames are sent to this log"
        self._block[: len(data)] = data
        if self._offset + size > LOOP_FILE_BYTES:
            self._offset = 0
        os.pwritev(self._fd, [memoryview(self._block)[:size]], self._offset, os.RWF_DSYNC)
        self._offset += size
        on_durable(len(parts))

    @override
    def stop(self) -> None:
        os.close(self._fd)


def _open_direct(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:  # a file system without it
        return os.open(path, flags, 0o600)


class BareConnection(asyncio.Protocol):
    """A connection that splits the incoming bytes into frames."""

    def __init__(self, log: Appender) -> None:
        self._log = log
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        start, frames = 0, []
        while len(buffer) - start >= LENGTH_BYTES:
            end = start + LENGTH_BYTES + int.from_bytes(buffer[start : start + LENGTH_BYTES])
            if end > len(buffer):
                break
            if end == start + LENGTH_BYTES:
                self._acknowledge(1)
            else:
                frames.append(buffer[start:end])
            start = end
        self._buffer = buffer[start:]
        if frames:
            self._log.append(frames, self._acknowledge)

    def _acknowledge(self, frames: int) -> None:
        if self._transport is not None:
            self._transport.write(ACK * frames)


async def accept(log: Appender) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve a log on a free port; return the address and the function that ends both."""
    server = await asyncio.get_running_loop().create_server(lambda: BareConnection(log), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def stop() -> None:
        server.close()
        log.stop()

    return f"127.0.0.1:{port}", stop


async def start() -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve the log that the command line names."""
    kind, path = sys.argv[1:]
    return await accept({"thread": BareLog, "loop": LoopLog}[kind](Path(path)))


if __name__ == "__main__":
    serve(start)
