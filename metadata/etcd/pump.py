"""The session's calls, carried out in the order in which they were made.

Reads that follow each other are sent together, several requests at a time; a write waits for the reads before it, and
a read for the writes before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from heliograph.errors import HeliographError
from metadata.errors import ConnectionLossError
from metadata.etcd.calls import Alone, Call, Read, ReadKind, ReadResult, Write
from metadata.etcd.connection import Connection
from metadata.etcd.draft import Result
from metadata.etcd.limits import OPERATIONS_MAX, READ_REQUESTS_MAX, READS_PER_REQUEST_MAX
from metadata.etcd.reader import Reader
from metadata.etcd.seen import Snapshot
from metadata.etcd.session import Session
from metadata.etcd.writer import Writer
from metadata.session_clock import now
from metadata.session_limits import CALLS_WAITING_MAX
from metadata.store import Operation, SessionState

T = TypeVar("T")


class Pump:
    """All calls of one session."""

    def __init__(self, session: Session) -> None:
        cache = Snapshot()
        self._session = session
        self._reader = Reader(session, cache)
        self._writer = Writer(session, self._reader, cache)
        self._waiting: deque[Call[Any]] = deque()
        self._work = asyncio.Event()
        self._reading: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def read(
        self, path: str, kind: ReadKind, on_result: Callable[[ReadResult], None] | None = None
    ) -> ReadResult:
        """Read a node.

        Raises:
            ConnectionLossError, SessionExpiredError, RecordError.
        """
        call = Read(now(), self._loop.create_future(), path, kind, on_result)
        return await self._put(call)

    async def write(self, operations: Sequence[Operation], *, is_barrier: bool = False) -> list[Result]:
        """Do all operations or none.

        Args:
            is_barrier: answer when the watches were told of everything before it.

        Raises:
            MetadataError.
        """
        return await self._put(Write(now(), self._loop.create_future(), operations, is_barrier))

    async def alone(self, do: Callable[[Connection], Awaitable[None]]) -> None:
        """Do something between two calls; it may be done twice."""
        await self._put(Alone(now(), self._loop.create_future(), do))

    def stop(self, error: HeliographError) -> None:
        """Fail what was not begun; what is under way fails by itself."""
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.fail(error)
        self._work.set()

    async def _put(self, call: Call[T]) -> T:
        if self._session.clock.state is SessionState.LOST:
            raise self._session.clock.over
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
        """A broken promise of our own must not leave callers waiting for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._loop.call_exception_handler({"message": "a metadata session failed", "exception": error})
            self._session.lose()

    async def _step(self) -> None:
        head = self._waiting[0]
        if isinstance(head, Read):
            await self._start_reads()
            return
        if self._reading:
            await asyncio.wait(self._reading)
        if not self._waiting or self._waiting[0] is not head:
            return  # the session ended meanwhile
        if isinstance(head, Write):
            writes = self._take(Write, OPERATIONS_MAX)
            if writes:
                self._waiting.extendleft(reversed(await self._writer.carry_out(writes)))
        else:
            assert isinstance(head, Alone), "there is no other kind of call"
            self._waiting.popleft()
            await self._do_alone(head)

    async def _start_reads(self) -> None:
        while len(self._reading) >= READ_REQUESTS_MAX:
            await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
        reads = self._take(Read, READS_PER_REQUEST_MAX)
        if reads:
            task = self._loop.create_task(self._reader.answer(reads))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    async def _do_alone(self, call: Alone) -> None:
        tried_since = now()
        while not call.is_over:
            try:
                connection = await self._session.until_connected(call.began_at, tried_since)
                try:
                    await call.do(connection)
                except ConnectionLossError as error:
                    self._session.give_up(connection, error)
                    continue
                call.answer(None)
            except HeliographError as error:
                call.fail(error)

    def _take(self, kind: type[Any], count_max: int) -> list[Any]:
        """The calls of that kind at the head of the queue, without those that nobody waits for any more."""
        taken: list[Any] = []
        while self._waiting and isinstance(self._waiting[0], kind) and len(taken) < count_max:
            call = self._waiting.popleft()
            if not call.is_over:
                taken.append(call)
        return taken
