"""The ends of tasks: work that runs to its end even if its caller is cancelled, and tasks that are ended.

A server cancels the requests of a connection that is lost. A change that must not stop half-way runs in a task of its
own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_running: set[asyncio.Task[Any]] = set()  # the event loop itself holds tasks weakly


async def run_to_completion(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run ``work`` to its end, even if the caller is cancelled meanwhile, and return its result.

    Args:
        work: Its failure after the caller was cancelled is reported to nobody.

    Raises:
        Exception: What ``work`` raises.
        CancelledError: The caller was cancelled; ``work`` goes on.
    """
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await shielded(task)


class OncePerTurn:
    """Calls a function soon, at most once in a turn of the event loop, however often it is due."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._is_due = False

    def due(self) -> None:
        """Have the function called in the next turn of the running loop."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        self._call()


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task and wait until it has ended. Do nothing if there is none.

    Raises:
        Exception: What the task raised, if it failed before or instead of being cancelled.
        CancelledError: The caller was cancelled; the task may still be ending.
    """
    if task is None:
        return
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def shielded(work: asyncio.Future[_Result] | Coroutine[Any, Any, _Result]) -> _Result:
    """Wait for work that a cancelled caller does not stop, such as work that others wait for as well.

    ``asyncio.shield`` alone forgets the work with its caller: a failure after that is one that nobody retrieved, which
    the event loop logs as an error.

    Raises:
        Exception: What ``work`` raises.
        CancelledError: The caller was cancelled, and ``work`` goes on; or ``work`` was cancelled.
    """
    future = asyncio.ensure_future(work)
    future.add_done_callback(_retrieve)
    return await asyncio.shield(future)


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
