"""Event loops on background threads, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import uvloop

_Result = TypeVar("_Result")

STOP_SECONDS_MAX = 2  # for the thread to end after its loop was stopped


class LoopThread:
    """An event loop on a daemon thread of its own, from construction on.

    As a context manager it closes at the end of the block. A forked child has the parent's loop object but not its
    thread: it must make a ``LoopThread`` of its own.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run ``coroutine`` on the loop and return its result; interrupting the wait cancels the coroutine.

        Raises:
            RuntimeError: The caller is on the loop's own thread and would wait for itself.
            Exception: What the coroutine raises.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                f"thread {self._thread.name!r} runs this event loop and cannot wait for it: await the coroutine, or "
                "use the asyncio handles"
            )
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Run ``coroutine`` on the loop and return the future of its result without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call ``function`` on the loop soon, without waiting."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Stop the loop and wait up to ``STOP_SECONDS_MAX`` for the thread to end. Tasks stay where they are."""
        self.call(self._loop.stop)
        self._thread.join(STOP_SECONDS_MAX)

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


class SharedLoopThread:
    """The loop thread that all handles of one kind share in a process; it lasts until the process ends.

    A forked child gets a thread of its own at its first call. An instance is never freed: keep one per module.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # re-entrant: a finaliser may need the thread while the thread is being started
        self._current: LoopThread | None = None
        self._inherited: list[LoopThread] = []  # never finalised in a child: their epoll objects are the parent's too
        atexit.register(self._stop_at_exit)
        os.register_at_fork(after_in_child=self._leave_parent)

    def current(self) -> LoopThread:
        """Return this process's thread; the first call starts it."""
        with self._lock:
            if self._current is None:
                self._current = LoopThread(self._name)
            return self._current

    def _stop_at_exit(self) -> None:
        if self._current is not None:  # an interpreter must not shut down under a running loop
            self._current.stop()

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
