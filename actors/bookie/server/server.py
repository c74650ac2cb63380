"""The bookie's listener: its connections, and the part that serves each kind of request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgpack

from heliograph.actors.bookie.config import (
    BODIES_MAX,
    CONNECTION_OUT_BYTES_MAX,
    GREETING_SECONDS_MAX,
    RECEIVE_SLAB_BYTES,
    BookieConfig,
)
from heliograph.actors.bookie.disk.monitor import DiskMonitor
from heliograph.actors.bookie.server.connection import BookieClientConnection
from heliograph.actors.bookie.server.in_process import InProcessReads
from heliograph.actors.bookie.server.reads import EntryReads, Reply
from heliograph.actors.bookie.server.receiving import ReceiveMemory
from heliograph.actors.bookie.store.payloads import NO_BODY, EntryPayload
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.bookie.upkeep.checkpointer import Checkpointer
from heliograph.actors.errors import BookieStorageError, BookieUnavailableError
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from heliograph.base.errors import ResourceError
from heliograph.base.guard.listener import ListenerGuard, UnsentBudget
from heliograph.base.guard.local_socket import LocalListener
from heliograph.base.peer import host_and_port
from heliograph.base.tls.contexts import ServerTls

LISTEN_BACKLOG = 512  # connections not accepted yet

_DRAIN_SECONDS_MAX = 5.0


class BookieServer:
    """Accepts connections and passes requests to ``storage`` and ``reads``."""

    def __init__(
        self,
        config: BookieConfig,
        storage: BookieStorage,
        reads: EntryReads,
        checkpointer: Checkpointer,
        space: DiskMonitor,
        statistics: Callable[[], dict[str, object]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        tls = config.tls
        # Direct readers have no certificate. So clients are not refused for that here, but by their connection.
        self.tls = None if tls is None else ServerTls(replace(tls.as_server, is_client_certificate_required=False))
        self.bookie_id = config.bookie_id
        self.cluster_secret = config.cluster_secret
        self.guard = ListenerGuard(config.bookie_id, config.listener)
        self.unsent = UnsentBudget(CONNECTION_OUT_BYTES_MAX)
        self.bodies = asyncio.Semaphore(BODIES_MAX)
        self.storage = storage
        self.reads = reads
        self.space = space
        self.receive_memory = ReceiveMemory(config.write_cache_bytes // RECEIVE_SLAB_BYTES)
        self.send_thread = ThreadPoolExecutor(1, "bookie-send")  # writes one large payload at a time
        self._checkpointer = checkpointer
        self.adds_refused = 0
        self.clients_refused = 0
        self._statistics = statistics
        self._on_failure = on_failure
        self._connections: set[BookieClientConnection] = set()
        self._listener: asyncio.Server | None = None
        self.local = LocalListener(config.bookie_id, lambda: BookieClientConnection(self))
        self._is_local = config.local_sockets and config.tls is None
        self._advertised_host = config.advertised_host or ""
        self.in_process = InProcessReads(self.answer, self.fail)
        self._serving = {
            BookieOp.READ: reads.read,
            BookieOp.READ_BATCH: reads.read_batch,
            BookieOp.READ_LAC: reads.read_lac,
            BookieOp.LIST_ENTRIES: reads.list_entries,
            BookieOp.WRITE_LAC: self._write_lac,
            BookieOp.STATISTICS: self._answer_statistics,
        }

    @property
    def is_crowded(self) -> bool:
        """Whether sockets should wait for a flush. False when flushes fail: adds are then refused, and reads go on."""
        return self.storage.write_cache.is_crowded and not self._checkpointer.is_failing

    @property
    def delays_copies(self) -> bool:
        """Whether sockets that bring copies of repair should wait for a flush, so that clients need not."""
        return self.storage.write_cache.is_left_to_clients and not self._checkpointer.is_failing

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port.

        Raises:
            ResourceError: the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: BookieClientConnection(self),
                host,
                port,
                backlog=LISTEN_BACKLOG,
                ssl=None if self.tls is None else self.tls.context,
                ssl_handshake_timeout=None if self.tls is None else GREETING_SECONDS_MAX,
            )
        except OSError as error:
            raise ResourceError(
                f"bookie {self.bookie_id} cannot listen on {host}:{port}: {error.strerror or error}; choose another "
                "bookie_port, or 0 for a free one",
                field="host,port",
            ) from error
        bound = int(self._listener.sockets[0].getsockname()[1])
        if self._is_local:
            await self.local.listen(host, bound, self._advertised_host, LISTEN_BACKLOG)
            await self.local.start_serving()
            if self._advertised_host in ("", host):  # otherwise something between the two would be bypassed
                self.in_process.start(host_and_port(host, bound), self.cluster_secret)
        return bound

    async def stop(self) -> None:
        """Accept no more connections and requests, answer the running requests, close."""
        if self._listener is None:
            return
        self._listener.close()
        self.local.close()
        try:
            async with asyncio.timeout(_DRAIN_SECONDS_MAX):
                draining = [connection.drain() for connection in tuple(self._connections)]
                await asyncio.gather(self.in_process.stop(), *draining)
        except TimeoutError:
            self.abort()
        await self._listener.wait_closed()
        self._listener = None
        self.guard.close()
        self.send_thread.shutdown()

    def abort(self) -> None:
        """Close the listener and abort all connections."""
        if self._listener is not None:
            self._listener.close()
            self.local.close()
        self.in_process.abort()
        for connection in tuple(self._connections):
            connection.abort()

    def admit(self, connection: BookieClientConnection) -> bool:
        """Register a new connection; return False if there are too many (I15)."""
        if not self.guard.admit(connection.address):
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: BookieClientConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.guard.leave(connection.address)

    def adjust_reading(self) -> None:
        """Have every connection check its bounds again, after a flush or a failed flush, and free memory."""
        self.receive_memory.trim()
        for connection in self._connections:
            connection.adjust_reading()

    def fail(self, error: BaseException) -> None:
        """Stop the bookie, because an assertion or another promise of our own code failed."""
        self._on_failure(error)

    async def answer(self, request: BookieRequest) -> Reply:
        """Serve any request but HELLO and ADD; what fails is an answer, too."""
        try:
            return await self.serve(request)
        except BookieUnavailableError as error:
            return Answer(request.request_id, Status.TOO_MANY_REQUESTS, text=str(error)), NO_BODY
        except BookieStorageError as error:
            return Answer(request.request_id, Status.STORAGE_ERROR, text=str(error)), NO_BODY  # I6: not a negative

    async def serve(self, request: BookieRequest) -> Reply:
        """Serve any request but HELLO and ADD.

        Raises:
            BookieStorageError: the answer is STORAGE_ERROR.
            BookieUnavailableError: the answer is TOO_MANY_REQUESTS.
        """
        serving = self._serving.get(request.op)
        if serving is None:
            return Answer(
                request.request_id, Status.BAD_REQUEST, text=f"{request.op.name} is not allowed here"
            ), NO_BODY
        return await serving(request)

    async def _write_lac(self, request: BookieRequest) -> Reply:
        status = await self.storage.write_lac(request.ledger_id, request.entry_id)
        return Answer(request.request_id, status, self.storage.last_add_confirmed(request.ledger_id)), NO_BODY

    async def _answer_statistics(self, request: BookieRequest) -> Reply:
        return Answer(request.request_id, Status.OK), EntryPayload((msgpack.packb(self._statistics()),))
