"""The Ray actor that hosts the embedded metadata server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from heliograph.errors import HeliographError
from metadata.embedded.limits import ServerLimits
from metadata.embedded.server import EmbeddedServer

START_PAUSE_SECONDS = 1.0  # between attempts of an actor that Ray restarted

_log = logging.getLogger(__name__)


class MetadataActor:
    """Serves the store of one directory from this process; made a Ray actor by the file that creates actors.

    An actor that Ray restarts serves again without being asked, at the address that it had. When the disk fails the
    process ends, so that a restart finds out what is on the disk. A call that is lost with the process has done
    nothing: clients talk to the server's socket, not to these methods.
    """

    def __init__(self, directory: str, host: str, port: int = 0, session_timeout_ms_min: int = 1_000) -> None:
        """
        Args:
            directory: where the store lives, on a disk of this node.
            host: address to listen on and to be reached at.
            port: 0 takes a free one at the first start and the same one ever after.
            session_timeout_ms_min: what a client may ask for at least.
        """
        assert __debug__, "run without -O: the server relies on its asserts"
        self._directory = Path(directory)
        self._host = host
        self._port = port
        self._limits = ServerLimits(session_timeout_ms_min=session_timeout_ms_min)
        self._server: EmbeddedServer | None = None
        self._changing = asyncio.Lock()
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        with contextlib.suppress(RuntimeError):  # outside of a loop, the first call starts the server
            self._tasks.append(asyncio.get_running_loop().create_task(self._start_until_served()))

    def __repr__(self) -> str:
        return "Metadata(embedded)"

    async def start(self) -> str:
        """Serve, and return ``host:port``. Idempotent.

        Raises:
            ResourceError: the directory or the port cannot be used.
            RecordError: the store is damaged or from a newer version.
        """
        return (await self._serving()).address

    async def address(self) -> str:
        """``host:port``; the same as ``start``."""
        return await self.start()

    async def statistics(self) -> dict[str, int]:
        """Counts, as ``EmbeddedServer.statistics`` has them."""
        return (await self._serving()).statistics()

    async def pid(self) -> int:
        """The process that serves."""
        return os.getpid()

    async def stop(self) -> None:
        """Stop serving; what was answered is durable. Idempotent. ``start`` serves again."""
        async with self._changing:
            self._stopped = True
            for task in self._tasks:
                task.cancel()
            self._tasks.clear()
            if self._server is not None:
                await self._server.stop()
                self._server = None

    async def _serving(self) -> EmbeddedServer:
        async with self._changing:
            if self._server is None:
                server = EmbeddedServer(self._directory, self._host, self._port, limits=self._limits)
                await server.start()
                self._server = server
                self._stopped = False
                self._tasks.append(asyncio.get_running_loop().create_task(_exit_when_failed(server)))
            return self._server

    async def _start_until_served(self) -> None:
        while not self._stopped:
            try:
                await self._serving()
                return
            except HeliographError as error:
                _log.warning("metadata cannot start yet: %s", error)
                await asyncio.sleep(START_PAUSE_SECONDS)


async def _exit_when_failed(server: EmbeddedServer) -> None:
    await server.failed.wait()
    os._exit(1)
