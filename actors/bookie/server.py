"""The bookie's listener: its connections, and which part serves which request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgpack

from actors.bookie.bodies import NO_BODY, Body
from actors.bookie.checkpointer import Checkpointer
from actors.bookie.config import CONNECTIONS_MAX, RECEIVE_BYTES
from actors.bookie.connection import BookieConnection
from actors.bookie.reads import Reads, Reply
from actors.bookie.space import Space
from actors.bookie.storage import Storage
from actors.wire.messages import Answer, Op, Request, Status
from heliograph.errors import ResourceError

_DRAIN_SECONDS_MAX = 5.0


class BookieServer:
    """Listens, and hands requests to ``storage`` and ``reads``."""

    def __init__(
        self,
        bookie_id: str,
        cluster_secret: str | None,
        storage: Storage,
        reads: Reads,
        checkpointer: Checkpointer,
        space: Space,
        statistics: Callable[[], dict[str, object]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.bookie_id = bookie_id
        self.cluster_secret = cluster_secret
        self.storage = storage
        self.reads = reads
        self.space = space
        self.receive_memory = memoryview(bytearray(RECEIVE_BYTES))  # one read is worked off before the next
        self.send_thread = ThreadPoolExecutor(1, "bookie-send")  # hands one large body to the kernel at a time
        self._checkpointer = checkpointer
        self.adds_refused = 0
        self.clients_refused = 0
        self._statistics = statistics
        self._on_failure = on_failure
        self._connections: set[BookieConnection] = set()
        self._listener: asyncio.Server | None = None
        self._serving = {
            Op.READ: reads.read,
            Op.READ_BATCH: reads.read_batch,
            Op.READ_LAC: reads.read_lac,
            Op.LIST_ENTRIES: reads.list_entries,
            Op.LONG_POLL_LAC: reads.long_poll_lac,
            Op.WRITE_LAC: self._write_lac,
            Op.STATISTICS: self._answer_statistics,
        }

    @property
    def is_crowded(self) -> bool:
        """Whether sockets should wait for a flush. Not when flushes fail: then adds are refused, and reads go on."""
        return self.storage.write_cache.is_crowded and not self._checkpointer.is_failing

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            ResourceError: the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(lambda: BookieConnection(self), host, port, backlog=512)
        except OSError as error:
            raise ResourceError(
                f"bookie {self.bookie_id} cannot listen on {host}:{port}: {error}", field="host,port"
            ) from error
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Take no more connections and requests, answer what is asked, close."""
        if self._listener is None:
            return
        self._listener.close()
        try:
            async with asyncio.timeout(_DRAIN_SECONDS_MAX):
                await asyncio.gather(*(connection.drain() for connection in tuple(self._connections)))
        except TimeoutError:
            self.abort()
        await self._listener.wait_closed()
        self._listener = None
        self.send_thread.shutdown()

    def abort(self) -> None:
        """Cut all connections and listen no more."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.abort()

    def admit(self, connection: BookieConnection) -> bool:
        """Count a new connection in, unless there are too many (I15)."""
        if len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: BookieConnection) -> None:
        """Count a lost connection out."""
        self._connections.discard(connection)

    def regulate(self) -> None:
        """Have every connection look at the bounds again, after a flush or a failed one."""
        for connection in self._connections:
            connection.regulate()

    def fail(self, error: BaseException) -> None:
        """A promise of our own code broke: the bookie must not go on."""
        self._on_failure(error)

    async def serve(self, request: Request) -> Reply:
        """Serve any request but HELLO and ADD.

        Raises:
            BookieStorageError: the answer is STORAGE_ERROR.
            BookieUnavailableError: the answer is TOO_MANY_REQUESTS.
        """
        serving = self._serving.get(request.op)
        if serving is None:
            return Answer(request.request_id, Status.BAD_REQUEST, text=f"{request.op.name} out of place"), NO_BODY
        return await serving(request)

    async def _write_lac(self, request: Request) -> Reply:
        status = await self.storage.write_lac(request.ledger_id, request.entry_id)
        return Answer(request.request_id, status, self.storage.last_add_confirmed(request.ledger_id)), NO_BODY

    async def _answer_statistics(self, request: Request) -> Reply:
        return Answer(request.request_id, Status.OK), Body((msgpack.packb(self._statistics()),))
