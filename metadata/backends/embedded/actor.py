"""The Ray actor that hosts the embedded metadata server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph.base.errors import HeliographError
from heliograph.base.peer import ListenAddress
from heliograph.base.processes import end_of_part
from heliograph.base.tls.contexts import PeerTlsFiles, ServerTls
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer

START_PAUSE_SECONDS = 1.0  # between attempts of an actor that Ray restarted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The requirements of a store for its clients: the cluster's secret, one per line, and mutual TLS."""

    secret: str | None = field(default=None, repr=False)
    tls: PeerTlsFiles | None = None


class MetadataActor:
    """The server of one directory in this process; ``heliograph/cluster`` makes it a Ray actor.

    After a restart by Ray the actor serves again by itself, at its old address. If the disk fails, the process ends,
    and the next one reads the disk again. A lost call has changed nothing: clients use the server's socket, not these
    methods.
    """

    def __init__(
        self,
        directory: str,
        listen: ListenAddress,
        limits: ServerLimits | None = None,
        access: StoreAccess | None = None,
    ) -> None:
        """
        Args:
            directory: the directory of the store, on a disk of this node.
            listen: the address to bind to, and the host that clients are given. Port 0: a free port is chosen at the
                first start and kept at every later start.
            limits: of the server; None: the defaults.
            access: what is required of clients; None: nothing, and connections are plain.
        """
        assert __debug__, "run without -O: the server relies on its asserts"
        self._directory = Path(directory)
        self._listen = listen
        self.access = access or StoreAccess()
        self._limits = limits or ServerLimits()
        self._server: EmbeddedServer | None = None
        self._changing = asyncio.Lock()
        self._stopped = False
        self._end = end_of_part()
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
        """Serve, and return ``host:port``: the same as ``start``."""
        return await self.start()

    async def statistics(self) -> dict[str, Any]:
        """Return the counts of ``EmbeddedServer.statistics``."""
        return (await self._serving()).statistics()

    async def history(self) -> dict[str, Any]:
        return (await self._serving()).history.told()

    async def stop(self) -> None:
        """Stop serving. Answered changes are durable. Idempotent; ``start`` serves again."""
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
                files, secret = self.access.tls, self.access.secret
                tls = None if files is None else ServerTls(files.as_server)
                server = EmbeddedServer(
                    self._directory,
                    self._listen.host,
                    self._listen.port,
                    first_port=self._listen.first_port,
                    advertised_host=self._listen.advertised_host,
                    secret=secret,
                    limits=self._limits,
                    tls=tls,
                )
                await server.start()
                self._server = server
                self._stopped = False
                self._tasks.append(asyncio.get_running_loop().create_task(_end_on_failure(server, self._end)))
            return self._server

    async def _start_until_served(self) -> None:
        while not self._stopped:
            try:
                await self._serving()
                return
            except HeliographError as error:
                log.warning("the metadata server of %s cannot start yet: %s", self._directory, error)
                await asyncio.sleep(START_PAUSE_SECONDS)


async def _end_on_failure(server: EmbeddedServer, end: Callable[[], None]) -> None:
    await server.failed.wait()
    end()
