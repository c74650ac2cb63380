"""A TCP proxy that can be cut or stalled, for tests of what a client does on a bad network."""

from __future__ import annotations

import asyncio
import contextlib


class StallingProxy:
    """Passes bytes between clients and one server. ``stalled``: bytes wait; ``cut``: connections end, none begin."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen; the port."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    def stall(self) -> None:
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()
        self._refusing = False

    def cut(self) -> None:
        self._refusing = True
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: asyncio reports those of its own making when they are cancelled.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if not self._refusing:
                server_reader, server_writer = await asyncio.open_connection(*self._target)
                ends.append(server_writer)
                await self._copy_both_ways(reader, writer, server_reader, server_writer)
        for end in ends:  # every one before the first wait: ``cut`` may cancel that
            end.transport.abort()
        for end in ends:
            with contextlib.suppress(OSError):
                await end.wait_closed()

    async def _copy_both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        both = [
            asyncio.create_task(self._copy(reader, server_writer)),
            asyncio.create_task(self._copy(server_reader, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
