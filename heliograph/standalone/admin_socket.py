"""The administration of a cluster in one process: for callers in it, and for ``helio`` by a Unix socket."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgpack
from typing_extensions import override

from heliograph.actors.broker.session import BrokerSessions
from heliograph.auth.principal import INTERNAL, Principal
from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.base.home import PRIVATE_FILE
from heliograph.client.admin.local_socket import receive, send, short_path
from heliograph.operations.admin import AdminOperations
from heliograph.operations.answer import packed_failure, packed_value
from heliograph.operations.table import OPERATIONS, AdminOperation

HERE = "this process"  # as the address of a caller


class BrokerAdministration(AdminOperations):
    """Runs every operation at the broker of the current session.

    Args:
        address: of the caller, for the audit log.
        principal: whose rights the operations need; by default, this process and others of its user are the cluster.

    Every method raises ServiceNotReadyError while the broker has no session, and otherwise what the operation raises.
    """

    def __init__(self, sessions: BrokerSessions, address: str = HERE, principal: Principal = INTERNAL) -> None:
        self._sessions = sessions
        self._address = address
        self._principal = principal
        self.run_through(self._run)

    @override
    def called_from(self, address: str) -> BrokerAdministration:
        return BrokerAdministration(self._sessions, address, self._principal)

    def on_behalf_of(self, principal: Principal) -> BrokerAdministration:
        """Return the administration whose operations need the rights of a role."""
        return BrokerAdministration(self._sessions, self._address, principal)

    def _run(self, operation: AdminOperation, arguments: dict[str, Any]) -> Awaitable[Any]:
        return self._sessions.broker.admin.run(operation.name, arguments, self._principal, self._address)


CALLS_MAX = 64  # that run at once; further ones wait # I15

log = logging.getLogger(__name__)


class AdminSocketServer:
    """Answers administrative calls of this user's own processes."""

    def __init__(self, path: Path, admin: AdminOperations) -> None:
        self._path = path
        self._admin = admin
        self._server: asyncio.Server | None = None
        self._running = asyncio.Semaphore(CALLS_MAX)
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen, and return the path of the socket; empty if its file system has no sockets."""
        self._path.unlink(missing_ok=True)  # of a process that was killed: its successor holds the directory's lock
        try:
            with short_path(self._path) as short:
                self._server = await asyncio.start_unix_server(self._connected, short)
        except OSError as error:
            log.warning("no socket for administrative calls: %s: %s", self._path, error)
            return ""
        os.chmod(self._path, PRIVATE_FILE)
        return str(self._path)

    async def stop(self) -> None:
        """Close the socket and end the calls. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None, "a connection has a task"
        self._calls.add(call)
        try:
            async with self._running:
                await self._answer(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the caller has gone, or the cluster ends
        finally:
            self._calls.discard(call)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = msgpack.unpackb(await receive(reader), strict_map_key=False)  # of this user's own process
            operation = OPERATIONS.get(str(request.get("operation")))
            if operation is None:
                raise BadRequestError(f"there is no operation {request.get('operation')!r}", field="operation")
            caller = self._admin.called_from(str(request.get("address") or "helio"))
            value = await caller.call(operation, dict(request.get("arguments") or {}))
        except HeliographError as error:
            await send(writer, packed_failure(error))
        else:
            await send(writer, packed_value(value))
