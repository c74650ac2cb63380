"""The two kinds of programs that use handles, with one face: what a cell does is written once for both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import heliograph

RESULT_SECONDS_MAX = 60.0  # of a future; a cell that waits longer hangs


class InterruptedByCallerError(Exception):
    """What interrupts a call from outside: a time limit by a signal, or of asyncio."""


class SyncProgram:
    """A program of one thread with the sync handles. ``run`` makes a call on the main thread."""

    kind = "sync"

    def connect(self, url: str, **options: Any) -> Any:
        return heliograph.connect(url, **options)

    def consumer(self, client: Any, topic: str, **options: Any) -> Any:
        return client.consumer(topic, "s", initial_position="earliest", **options)

    def run(self, call: Callable[[], Any]) -> Any:
        return call()

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Begin a call on the side; return what waits for its end."""
        ended = threading.Event()
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(call())
            except Exception as error:
                found.append(error)
            ended.set()

        threading.Thread(target=work, daemon=True).start()
        return lambda: ended.wait(RESULT_SECONDS_MAX) and found[0]

    def unopened(self, handle: Any) -> Any:
        """Return the same handle, not open."""
        handle.close()
        return pickle.loads(pickle.dumps(handle))

    @contextlib.contextmanager
    def interrupting(self, seconds: float, *, cancels: bool) -> Iterator[None]:
        """Interrupt the call of the block by an exception of a signal handler, or by Ctrl-C."""

        def interrupt(*_: object) -> None:
            raise InterruptedByCallerError

        signal.signal(signal.SIGUSR1, interrupt)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT if cancels else signal.SIGUSR1))
        timer.daemon = True
        timer.start()
        try:
            yield
        except KeyboardInterrupt:
            raise InterruptedByCallerError from None
        finally:
            timer.cancel()

    def send_async(self, producer: Any, value: bytes) -> Any:
        return producer.send_async(value).result(RESULT_SECONDS_MAX)

    def next_of(self, consumer: Any) -> Any:
        return next(iter(consumer))


class AsyncProgram:
    """A program with the async handles, whose event loop runs while ``run`` makes a call."""

    kind = "async"

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._wrap: Callable[[Awaitable[Any]], Awaitable[Any]] = lambda work: work

    def connect(self, url: str, **options: Any) -> Any:
        return self.run(lambda: heliograph.connect_async(url, **options))

    def consumer(self, client: Any, topic: str, **options: Any) -> Any:
        consumer = client.consumer(topic, "s", initial_position="earliest", **options)
        return self.run(consumer.open)

    def run(self, call: Callable[[], Any]) -> Any:
        async def work() -> Any:
            found = call()
            return await self._wrap(found) if isinstance(found, Awaitable) else found

        return self._runner.run(work())

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Begin a call on the side; return what waits for its end."""

        async def work() -> Any:
            try:
                return await call()
            except Exception as error:
                return error

        task = self._runner.get_loop().create_task(work())
        self._runner.run(asyncio.sleep(0.01))
        return lambda: self._runner.run(asyncio.wait_for(task, RESULT_SECONDS_MAX))

    def unopened(self, handle: Any) -> Any:
        """Return the same handle, not open."""
        self.run(handle.close)
        return pickle.loads(pickle.dumps(handle))

    @contextlib.contextmanager
    def interrupting(self, seconds: float, *, cancels: bool) -> Iterator[None]:
        """Interrupt the call of the block by ``asyncio.timeout``, or by cancelling its task."""

        async def limited(work: Awaitable[Any]) -> Any:
            async with asyncio.timeout(seconds):
                return await work

        async def cancelled(work: Awaitable[Any]) -> Any:
            task = asyncio.ensure_future(work)
            asyncio.get_running_loop().call_later(seconds, task.cancel)
            return await task

        self._wrap = cancelled if cancels else limited
        try:
            yield
        except (TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, heliograph.errors.HeliographError):
                raise
            raise InterruptedByCallerError from None
        finally:
            self._wrap = lambda work: work

    async def send_async(self, producer: Any, value: bytes) -> Any:
        return await (await producer.enqueue(value))

    async def next_of(self, consumer: Any) -> Any:
        return await anext(aiter(consumer))


Program = SyncProgram | AsyncProgram
