"""A bare log: the least work of a server that gives a bookie's guarantee.

Frames of ``u32 length | payload`` are appended to one preallocated file; each is acknowledged, after
fdatasync, with 4 bytes. One thread writes and syncs whatever gathered during the last sync. A frame of length 0 is
echoed immediately. There are no entry ids, no checksums, no index, no reads, no replay and one client: the additional
time of a real bookie is the cost of those.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

from tests.bench.serving import serve

FILE_BYTES = 256 << 20  # written in a circle
ACK = b"\0\0\0\1"
LENGTH_BYTES = 4


class BareLog:
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

    def append(self, parts: list[bytes], on_durable: Callable[[int], None]) -> None:
        """Queue frames; ``on_durable`` is called on the loop with the number of durable frames."""
        with self._condition:
            self._parts += parts
            self._frames += len(parts)
            self._on_durable = on_durable
            self._condition.notify()

    def stop(self) -> None:
        """End the thread."""
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


class BareConnection(asyncio.Protocol):
    """A connection that splits the incoming bytes into frames."""

    def __init__(self, log: BareLog) -> None:
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


async def start() -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve on a free port."""
    log = BareLog(Path(sys.argv[1]))
    server = await asyncio.get_running_loop().create_server(lambda: BareConnection(log), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def stop() -> None:
        server.close()
        log.stop()

    return f"127.0.0.1:{port}", stop


if __name__ == "__main__":
    serve(start)
