"""Event loops on background threads, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, Self, TypeVar

try:
    from uvloop import new_event_loop
except ImportError:  # there is none for Windows
    from asyncio import new_event_loop  # type: ignore[assignment]

from heliograph.base.errors import AlreadyClosedError

_Result = TypeVar("_Result")

STOP_SECONDS_MAX = 2  # for the thread to end after its loop was stopped


class LoopThread:
    """An event loop on its own daemon thread, from construction on.

    As a context manager it closes at the end of the block. A forked child has the parent's loop object but not its
    thread: it must make a ``LoopThread`` of its own.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._is_stopping = False  # nothing that is started from now on would ever run
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(
        self, coroutine: Coroutine[Any, Any, _Result], give_back: Callable[[_Result], object] | None = None
    ) -> _Result:
        """Run ``coroutine`` on the loop and return its result; interrupting the wait cancels the coroutine.

        Args:
            give_back: Called on the loop with the result of a coroutine that ended although its caller was interrupted
                by an exception, of a signal handler for instance. Without it such a result is lost.

        Raises:
            RuntimeError: The caller is on the loop's own thread and would wait for itself.
            AlreadyClosedError: The loop was stopped.
            Exception: The coroutine raised it.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                f"thread {self._thread.name!r} runs this event loop and cannot wait for it: await the coroutine, or "
                "use the asyncio handles"
            )
        handover = None if give_back is None else _Handover(coroutine, give_back)
        future = self.start(coroutine if handover is None else handover.run())
        try:
            return future.result()
        except BaseException:
            self._interrupt(future, handover)
            raise

    async def wait(
        self, coroutine: Coroutine[Any, Any, _Result], give_back: Callable[[_Result], object] | None = None
    ) -> _Result:
        """Do what ``run`` does for a caller in another event loop, whose task may be cancelled."""
        handover = None if give_back is None else _Handover(coroutine, give_back)
        future = self.start(coroutine if handover is None else handover.run())
        try:
            return await asyncio.wrap_future(future)
        except BaseException:
            self._interrupt(future, handover)
            raise

    def _interrupt(self, future: Future[_Result], handover: _Handover[_Result] | None) -> None:
        future.cancel()
        if handover is not None:
            self.call(handover.abandon)

    def start(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Run ``coroutine`` on the loop and return the future of its result without waiting.

        Raises:
            AlreadyClosedError: The loop was stopped.
        """
        if self._is_stopping:
            coroutine.close()
            raise AlreadyClosedError(f"the event loop of thread {self._thread.name!r} was stopped")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call ``function`` on the loop soon, without waiting."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Stop the loop and wait up to ``STOP_SECONDS_MAX`` for the thread to end. Tasks stay where they are."""
        self._is_stopping = True
        self.call(self._loop.stop)
        self._thread.join(STOP_SECONDS_MAX)

    def abandon(self) -> None:
        """Cancel every task, so that nobody waits for one, and stop the loop, within ``2 * STOP_SECONDS_MAX``."""
        cancelling = self.start(_cancel_other_tasks())
        self._is_stopping = True
        with contextlib.suppress(TimeoutError):
            cancelling.result(STOP_SECONDS_MAX)
        self.stop()

    def close(self) -> None:
        """Cancel every task, wait for the tasks to end, then stop the thread and close the loop.

        Nothing happens when the thread has ended, or belongs to the parent of this forked process.
        """
        if not self._thread.is_alive():
            return
        self.run(_cancel_other_tasks())
        self.stop()
        if not self._thread.is_alive():
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class _Handover(Generic[_Result]):
    """The result of a coroutine on its way to a caller in another thread. All but the making is done on the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, _Result], give_back: Callable[[_Result], object]) -> None:
        self._coroutine = coroutine
        self._give_back = give_back
        self._results: list[_Result] = []  # at most one, which the caller may still not have seen
        self._is_abandoned = False

    async def run(self) -> _Result:
        result = await self._coroutine
        self._results.append(result)
        if self._is_abandoned:
            self.abandon()
        return result

    def abandon(self) -> None:
        """Give the result back, now or when it comes: the caller was interrupted and did not get it."""
        self._is_abandoned = True
        while self._results:
            self._give_back(self._results.pop())


class SharedLoopThread:
    """The loop thread that all handles of one kind share in a process; it lasts until the exit hooks of the process.

    Work that still runs then is cancelled, and later calls raise AlreadyClosedError instead of waiting for ever.

    A forked child gets a thread of its own at its first call. An instance is never freed: keep one per module.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # re-entrant: a finaliser may need the thread while the thread is being started
        self._current: LoopThread | None = None
        self.has_ended = False  # the exit hooks of the process ran
        self._inherited: list[LoopThread] = []  # never finalised in a child: their epoll objects are the parent's too
        atexit.register(self._stop_at_exit)
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(after_in_child=self._leave_parent)

    def current(self) -> LoopThread:
        """Return this process's thread; the first call starts it.

        Raises:
            AlreadyClosedError: The exit hooks of the process have stopped it, or come before its first use.
        """
        with self._lock:
            if self.has_ended:
                raise AlreadyClosedError(f"the process is ending: thread {self._name!r} was stopped")
            if self._current is None:
                self._current = LoopThread(self._name)
            return self._current

    def _stop_at_exit(self) -> None:
        self.has_ended = True
        if self._current is not None:  # an interpreter must not shut down under a running loop
            self._current.abandon()

    def _leave_parent(self) -> None:
        if self._current is not None:
            self._inherited.append(self._current)
        self._current = None
        self._lock = threading.RLock()  # the parent's may be held by a thread that the child does not have


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
