"""The one background thread per process whose event loop runs all sync handles."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

_Result = TypeVar("_Result")


class LoopThread:
    """An event loop on a daemon thread.

    A forked child has the parent's loop object but not its thread, so it gets a loop of its own at its first call.
    """

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="heliograph-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs ``coroutine`` on the loop and waits for it; interrupting the wait cancels the coroutine."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a sync handle cannot be used on the thread that serves it; use the asyncio handles")
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Runs ``coroutine`` on the loop without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Calls ``function`` on the loop, soon."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Ends the thread, at the end of the process: an interpreter must not shut down under a running loop."""
        self.call(self._loop.stop)
        self._thread.join(timeout=_STOP_SECONDS_MAX)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


_STOP_SECONDS_MAX = 2
_lock = threading.RLock()  # a finaliser may need the thread in the middle of starting it
_current: LoopThread | None = None
_inherited: list[LoopThread | None] = []  # never finalised in a child: its epoll object belongs to the parent too


def current() -> LoopThread:
    """This process's loop thread, started at the first call."""
    global _current
    with _lock:
        if _current is None:
            _current = LoopThread()
        return _current


@atexit.register
def _stop_at_exit() -> None:
    if _current is not None:
        _current.stop()


def _start_anew_in_child() -> None:
    global _current, _lock
    _inherited.append(_current)
    _current = None
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_start_anew_in_child)
