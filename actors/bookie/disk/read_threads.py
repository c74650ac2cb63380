"""Threads for blocking reads, which hand their results to the event loop themselves.

``ThreadPoolExecutor`` makes two futures for each call, and goes on with its own work after the call, while the event
loop is awake again and waits for the interpreter lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from heliograph.actors.errors import BookieUnavailableError

T = TypeVar("T")


class ReadThreads:
    """Threads that start when they are needed. Used on one event loop. The callers bound how many calls wait (I15).

    Attributes:
        running: calls whose end the event loop does not know of yet.
    """

    def __init__(self, count: int) -> None:
        self.running = 0
        self._count = count
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have a thread call a blocking function; return the future of its result or error.

        If the future is cancelled before a thread takes the call, the function is not called; after that, it runs on.

        Raises:
            BookieUnavailableError: ``shutdown`` was called, or the system gives this process no thread.
        """
        if self._is_closed:
            raise BookieUnavailableError("the bookie has stopped reading")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                found = None if future.cancelled() else function()
            except BaseException as error:
                tell(self._fail, future, error)
            else:
                tell(self._finish, future, found)

        def tell(end: Callable[..., None], future: asyncio.Future[T], outcome: object) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(end, future, outcome)

        if self.running >= len(self._threads) < self._count:
            self._start_thread()
        self.running += 1
        self._jobs.put(run)
        return future

    def shutdown(self) -> None:
        """End the threads after they have called everything that was begun. Blocks. Idempotent."""
        self._is_closed = True
        for _ in self._threads:
            self._jobs.put(None)
        while self._threads:
            self._threads.pop().join()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"bookie-read-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the limit of the user or of the machine; the threads that there are go on
            if not self._threads:
                raise BookieUnavailableError(f"no thread can be started to read the disk: {error}") from error
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        take = self._jobs.get
        while (job := take()) is not None:
            job()
            job = None  # what it refers to is free while this thread waits

    def _finish(self, future: asyncio.Future[T], found: T) -> None:
        self.running -= 1
        if not future.done():
            future.set_result(found)

    def _fail(self, future: asyncio.Future[T], error: BaseException) -> None:
        self.running -= 1
        if not future.done():
            future.set_exception(error)
