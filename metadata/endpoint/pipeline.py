"""Requests of one connection that were begun: several may be under way, and their answers leave in the requests' order.

As in ZooKeeper, a client that sends writes without waiting for their answers has them committed together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from metadata.endpoint.codes import ErrorCode
from metadata.endpoint.requests import Request


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the answer to a request says; it has a body only if the code is OK."""

    code: ErrorCode
    body: bytes = b""


@dataclass(eq=False, slots=True)
class _Turn:
    """A request under way. ``failure``: there is no answer to it."""

    request: Request
    begun: float
    outcome: Outcome | None = None
    failure: Exception | None = None


class Pipeline:
    """The requests under way, in their order."""

    def __init__(
        self,
        run: Callable[[Request], Awaitable[Outcome]],
        answer: Callable[[Request, Outcome, float], None],
        on_failure: Callable[[], None],
    ) -> None:
        """
        Args:
            run: carries a request out; an exception says that it gets no answer, and no later one gets one either.
            answer: sends an answer; the number is when the request was begun, by the loop's clock.
            on_failure: called when a request got no answer and those before it have theirs; ``check`` raises from then.
        """
        self._run = run
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._turns: deque[_Turn] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure
        self._moved = asyncio.Event()
        self._failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._turns)

    def begin(self, request: Request) -> None:
        """Carry a request out beside those that are under way; its first step comes after theirs."""
        turn = _Turn(request, self._loop.time())
        self._turns.append(turn)
        task = self._loop.create_task(self._carry_out(turn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_below(self, count: int) -> None:
        """Wait until fewer requests than ``count`` are under way, or there is something to ``check``."""
        while len(self._turns) >= count and self._failure is None:
            self._moved.clear()
            await self._moved.wait()

    def check(self) -> None:
        """Raise the exception of the first request that gets no answer, if there is one."""
        if self._failure is not None:
            raise self._failure

    async def finish(self) -> None:
        """Wait until everything that was begun is done, answered or not."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry_out(self, turn: _Turn) -> None:
        try:
            turn.outcome = await self._run(turn.request)
        except Exception as error:
            turn.failure = error
        # In the same step of the loop as the store's answer, so that what the store tells next is told after it.
        self._advance()

    def _advance(self) -> None:
        while self._turns and self._failure is None:
            head = self._turns[0]
            if head.outcome is not None:
                self._turns.popleft()
                self._answer(head.request, head.outcome, head.begun)
            elif head.failure is not None:
                self._failure = head.failure
                self._on_failure()
            else:
                break
        self._moved.set()
