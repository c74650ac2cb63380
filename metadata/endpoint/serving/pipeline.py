"""The requests of one connection that run concurrently; their answers are sent in the order of the requests.

As in ZooKeeper, writes that a client sends without waiting for answers are committed together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from heliograph.metadata.endpoint.wire.codes import ErrorCode
from heliograph.metadata.endpoint.wire.requests import EndpointRequest


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of a request; it has a body only if the code is OK."""

    code: ErrorCode
    body: bytes = b""


@dataclass(eq=False, slots=True)
class _PipelinedRequest:
    """A request in progress. If it has a ``failure``, it gets no answer."""

    request: EndpointRequest
    begun: float
    outcome: RequestOutcome | None = None
    failure: Exception | None = None


class Pipeline:
    """The requests in progress, in their order."""

    def __init__(
        self,
        run: Callable[[EndpointRequest], Awaitable[RequestOutcome]],
        answer: Callable[[EndpointRequest, RequestOutcome, float], None],
        on_failure: Callable[[], None],
    ) -> None:
        """
        Args:
            run: runs a request; an exception means that neither it nor any later request gets an answer.
            answer: sends an answer; the number is the start time of the request, by the loop's clock.
            on_failure: called when a request has failed and all earlier ones are answered; ``check`` raises from then
                on.
        """
        self._run = run
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._in_progress: deque[_PipelinedRequest] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure
        self._moved = asyncio.Event()
        self._failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._in_progress)

    def begin(self, request: EndpointRequest) -> None:
        """Start a request concurrently with the ones in progress; its first step runs after theirs."""
        item = _PipelinedRequest(request, self._loop.time())
        self._in_progress.append(item)
        task = self._loop.create_task(self._run_item(item))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_below(self, count: int) -> None:
        """Wait until fewer requests than ``count`` are in progress, or one has failed."""
        while len(self._in_progress) >= count and self._failure is None:
            self._moved.clear()
            await self._moved.wait()

    def check(self) -> None:
        """Raise the exception of the first failed request, if there is one."""
        if self._failure is not None:
            raise self._failure

    async def finish(self) -> None:
        """Wait until all started requests are done, answered or not."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run_item(self, item: _PipelinedRequest) -> None:
        try:
            item.outcome = await self._run(item.request)
        except Exception as error:
            item.failure = error
        # In the same step of the loop as the store's answer, so that later events of the store are sent after it.
        self._advance()

    def _advance(self) -> None:
        while self._in_progress and self._failure is None:
            head = self._in_progress[0]
            if head.outcome is not None:
                self._in_progress.popleft()
                self._answer(head.request, head.outcome, head.begun)
            elif head.failure is not None:
                self._failure = head.failure
                self._on_failure()
            else:
                break
        self._moved.set()
