"""The ends of tasks: work that runs to its end even if its caller is cancelled, and tasks that are ended.

A server cancels the requests of a connection that is lost. A change that must not stop half-way runs in a task of its
own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, ParamSpec, TypeVar, cast
from weakref import WeakMethod

_Result = TypeVar("_Result")
_Key = TypeVar("_Key")
_Arguments = ParamSpec("_Arguments")

_running: set[asyncio.Task[Any]] = set()  # the event loop itself holds tasks weakly


async def run_to_completion(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run ``work`` to its end, even if the caller is cancelled meanwhile, and return its result.

    Args:
        work: Its failure after the caller was cancelled is reported to nobody.

    Raises:
        Exception: ``work`` raised it.
        CancelledError: The caller was cancelled; ``work`` goes on.
    """
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await shielded(task)


async def all_ended(work: Iterable[Awaitable[_Result]]) -> list[_Result]:
    """Run work at the same time, and return the results when all of it has ended.

    ``asyncio.gather`` alone raises an error while the other work goes on, and a caller that tries again then meets it.

    Raises:
        Exception: some work raised it; it is the error of the first such work, in the order that was given.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return cast(list[_Result], outcomes)


def weakly(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return a function that calls a bound method while its object lives, and refers to the object weakly.

    An object that gives its parts such functions is in no cycle with them, so it goes when nobody else refers to it.
    Once it is gone, a call does nothing and returns None.
    """
    found = WeakMethod(method)

    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        bound = found()
        return None if bound is None else bound(*args, **kwargs)  # type: ignore[return-value]

    return call


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task and wait until it has ended. Do nothing if there is none.

    Raises:
        Exception: The task raised it before or instead of being cancelled.
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
        Exception: ``work`` raised it.
        CancelledError: The caller was cancelled, and ``work`` goes on; or ``work`` was cancelled.
    """
    future = asyncio.ensure_future(work)
    future.add_done_callback(_retrieve)
    return await asyncio.shield(future)


class Shared(Generic[_Key, _Result]):
    """Work that several callers want at the same time, such as a read: it is done once for those who ask meanwhile."""

    def __init__(self) -> None:
        self.tasks: dict[_Key, asyncio.Task[_Result]] = {}  # one of a key

    async def run(self, key: _Key, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Return the result of the work under way for ``key``, or begin it. A cancelled caller does not stop it.

        Raises:
            Exception: the work raised it, to all callers.
        """
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda _: self.tasks.pop(key))
        return await shielded(task)


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
