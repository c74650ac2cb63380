"""The session's calls, run in the order in which they were made.

Reads that follow each other are sent together, several requests at a time; a write waits for the reads before it, and
a read for the writes before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.etcd.calls.calls import EtcdRead, EtcdWrite, ExclusiveCall, Page, ReadKind, ReadResult
from heliograph.metadata.backends.etcd.calls.reader import EtcdReader
from heliograph.metadata.backends.etcd.calls.writer import EtcdWriter
from heliograph.metadata.backends.etcd.session import EtcdSession
from heliograph.metadata.backends.etcd.transactions.observed_revisions import Snapshot
from heliograph.metadata.backends.etcd.transactions.plan import Result
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection
from heliograph.metadata.backends.etcd.wire.limits import OPERATIONS_MAX, READ_REQUESTS_MAX, READS_PER_REQUEST_MAX
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.session.call_queue import Call
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import CALLS_WAITING_MAX
from heliograph.metadata.store import Operation, SessionState


class EtcdCallLoop:
    """All calls of one session."""

    def __init__(self, session: EtcdSession) -> None:
        cache = Snapshot()
        self._session = session
        self._reader = EtcdReader(session, cache)
        self._writer = EtcdWriter(session, self._reader, cache)
        self._waiting: deque[Call] = deque()
        self._work = asyncio.Event()
        self._reading: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def read(
        self, path: str, kind: ReadKind | Page, on_result: Callable[[ReadResult], None] | None = None
    ) -> ReadResult:
        """Read a node.

        Raises:
            ConnectionLossError, SessionExpiredError, RecordError.
        """
        result: ReadResult = await self._put(EtcdRead(path, kind, on_result, self._loop.create_future()))
        return result

    async def write(self, operations: Sequence[Operation], *, is_barrier: bool = False) -> list[Result]:
        """Apply all operations or none.

        Args:
            is_barrier: answer after the watches were told of everything before the call.

        Raises:
            MetadataError.
        """
        call = EtcdWrite(operations, self._loop.create_future(), is_barrier=is_barrier)
        results: list[Result] = await self._put(call)
        return results

    async def alone(self, run: Callable[[EtcdConnection], Awaitable[None]]) -> None:
        """Run a function while no other call is under way. It is called again if the connection breaks."""
        await self._put(ExclusiveCall(run, self._loop.create_future()))

    def stop(self, error: HeliographError) -> None:
        """Fail the calls that were not sent. Those under way fail when they find the session LOST."""
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.fail(error)
        self._work.set()

    async def _put(self, call: Call) -> Any:
        self._session.clock.check()
        assert call.future is not None, "a caller waits for the answer"
        if len(self._waiting) >= CALLS_WAITING_MAX:  # I15
            raise ConnectionLossError(f"{CALLS_WAITING_MAX} metadata calls are waiting already", field="calls")
        self._waiting.append(call)
        self._work.set()
        return await call.future

    async def _run(self) -> None:
        while self._session.clock.state is not SessionState.LOST or self._waiting:
            while self._waiting:
                await self._step()
            self._work.clear()
            if self._session.clock.state is not SessionState.LOST:
                await self._work.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End the session if the event loop task has failed, so that no caller waits for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._loop.call_exception_handler({"message": "a metadata session failed", "exception": error})
            self._session.lose()

    async def _step(self) -> None:
        head = self._waiting[0]
        if isinstance(head, EtcdRead):
            await self._start_reads()
            return
        if self._reading:
            await asyncio.wait(self._reading)
        if not self._waiting or self._waiting[0] is not head:
            return  # the session ended meanwhile
        if isinstance(head, EtcdWrite):
            writes = self._take(EtcdWrite, OPERATIONS_MAX)
            if writes:
                self._waiting.extendleft(reversed(await self._writer.carry_out(writes)))
        else:
            assert isinstance(head, ExclusiveCall), "there is no other kind of call"
            self._waiting.popleft()
            await self._run_alone(head)

    async def _start_reads(self) -> None:
        while len(self._reading) >= READ_REQUESTS_MAX:
            await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
        reads = self._take(EtcdRead, READS_PER_REQUEST_MAX)
        if reads:
            task = self._loop.create_task(self._reader.answer(reads))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    async def _run_alone(self, call: ExclusiveCall) -> None:
        tried_since = now()
        while not call.is_over:
            try:
                connection = await self._session.until_connected(call.began_at, tried_since)
                try:
                    await call.run(connection)
                except ConnectionLossError as error:
                    self._session.give_up(connection, error)
                    continue
                call.answer(None)
            except HeliographError as error:
                call.fail(error)

    def _take(self, kind: type[Any], count_max: int) -> list[Any]:
        """Take the calls of one kind from the head of the queue, leaving out calls whose callers are gone."""
        taken: list[Any] = []
        while self._waiting and isinstance(self._waiting[0], kind) and len(taken) < count_max:
            call = self._waiting.popleft()
            if not call.is_over:
                taken.append(call)
        return taken
