"""What all sync handles share: each is a thin front of an async handle on the process's loop thread."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from heliograph import loop_thread
from heliograph.aio.handle import AsyncHandle

_Async = TypeVar("_Async", bound=AsyncHandle)
_Result = TypeVar("_Result")

_making = threading.RLock()  # making a handle makes its client's handle first
_inherited: list[object] = []  # async handles of a forked child's parent: never finalised in the child


class Handle(Generic[_Async]):
    """A sync handle.

    It makes its async handle when it is first used in a process: after unpickling, and in a forked child, it opens
    anew with connections of its own. Closing it there does not touch the one it was copied from.
    """

    def __init__(self) -> None:
        self._made: tuple[int, _Async] | None = None

    def close(self) -> None:
        """Closes the handle in this process; a second call does nothing."""
        made = self._async()
        loop_thread.current().run(made.close())

    def open(self) -> Self:
        """Opens the handle now instead of at its first use; the errors are those of the async handle's opening."""
        self._run(lambda handle: handle.open())
        return self

    def _make(self) -> _Async:
        raise AssertionError("each handle says how its async handle is made")

    def _async(self) -> _Async:
        process = os.getpid()
        made = self._made
        if made is not None and made[0] == process:
            return made[1]
        with _making:
            if self._made is not None and self._made[0] == process:
                return self._made[1]
            if self._made is not None:
                _inherited.append(self._made[1])
            self._made = (process, self._make())
            weakref.finalize(self, _close_abandoned, process, self._made[1]).atexit = False
            return self._made[1]

    def _run(self, call: Callable[[_Async], Coroutine[Any, Any, _Result]]) -> _Result:
        return loop_thread.current().run(call(self._async()))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _unlock_in_child() -> None:
    global _making
    _making = threading.RLock()


os.register_at_fork(after_in_child=_unlock_in_child)


def _close_abandoned(process: int, handle: AsyncHandle) -> None:
    """Nobody holds the sync handle any more: leave the topic, or the connections, in the background."""
    if process == os.getpid() and handle.is_open:
        loop_thread.current().start(handle.close())
