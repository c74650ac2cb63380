"""Batches of entries for clients on the bookie's own event loop, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from heliograph.actors.bookie.config import CONNECTION_BODIES_MAX
from heliograph.actors.bookie.server.reads import Reply, range_fault
from heliograph.actors.errors import BookieUnavailableError
from heliograph.actors.wire import in_process
from heliograph.actors.wire.messages import Answer, BookieRequest, Status

_NOTHING = memoryview(b"")


class InProcessReads:
    """The reads of all clients on the event loop, of which so many are served at once as of one connection (I15).

    Args:
        answer: serves a request.
        on_failure: called with an error that breaks a promise of our own code.
    """

    def __init__(
        self, answer: Callable[[BookieRequest], Awaitable[Reply]], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._answer = answer
        self._on_failure = on_failure
        self._bodies = asyncio.Semaphore(CONNECTION_BODIES_MAX)
        self._tasks: set[asyncio.Task[tuple[Answer, memoryview]]] = set()
        self._address = ""

    def start(self, address: str, secret: str | None) -> None:
        """Serve the clients that know the address and the secret."""
        self._address = address
        in_process.offer(address, secret, self.read)

    async def stop(self) -> None:
        """Take no more requests, and answer the taken ones."""
        self._withdraw()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def abort(self) -> None:
        """Take no more requests, and answer the taken ones with an error."""
        self._withdraw()
        for task in self._tasks:
            task.cancel()

    def read(self, request: BookieRequest, on_batch: in_process.OnBatch) -> None:
        """Serve a request; ``on_batch`` is called once, later."""
        task = asyncio.get_running_loop().create_task(self._serve(request))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(done, on_batch))

    def _withdraw(self) -> None:
        if self._address:
            in_process.withdraw(self._address)
            self._address = ""

    async def _serve(self, request: BookieRequest) -> tuple[Answer, memoryview]:
        fault = range_fault(request)
        if fault:
            return Answer(request.request_id, Status.BAD_REQUEST, text=fault), _NOTHING
        async with self._bodies:
            answer, body = await self._answer(request)
            try:
                return answer, memoryview(b"".join(body.pieces))  # the memory of the pieces is used again
            finally:
                body.release()

    def _done(self, task: asyncio.Task[tuple[Answer, memoryview]], on_batch: in_process.OnBatch) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)
        if error is not None or task.cancelled():
            on_batch(BookieUnavailableError("the bookie of this process stops"), _NOTHING)
            return
        on_batch(*task.result())
