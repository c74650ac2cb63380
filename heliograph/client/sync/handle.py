"""The hand-written part of the sync handles: each is a front of an async handle on the process's loop thread."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from typing_extensions import override

from heliograph.base.errors import AlreadyClosedError, RunningLoopError
from heliograph.base.loop_thread import LoopThread, SharedLoopThread
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.aio.table_view import AsyncTableView
from heliograph.client.options import ClientOptions, ConsumerOptions, TableViewOptions
from heliograph.client.types import Received

if TYPE_CHECKING:
    from heliograph.client.admin.admin import BlockingAdmin
    from heliograph.client.sync.client import Client

_Async = TypeVar("_Async", bound=AsyncHandle)
_Options = TypeVar("_Options")
_Consumer = TypeVar("_Consumer", bound=AsyncConsumer[Any])
_Result = TypeVar("_Result")

threads = SharedLoopThread("heliograph-client")  # its event loop runs the async handles behind all sync ones
_making = threading.RLock()  # re-entrant: making a handle makes its client's handle first
_inherited: list[object] = []  # async handles of a forked child's parent: never finalised in the child


def refuse_on_running_loop(work: Coroutine[Any, Any, object] | None, call: str, counterpart: str) -> None:
    """Refuse to block an event loop, but that of a notebook, which does nothing else while a cell runs.

    Args:
        work: what the call would have run; it is closed.
        call: name of the call.
        counterpart: what to use instead.

    Raises:
        RunningLoopError: An event loop runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if _runs_cells():
        return
    if work is not None:
        work.close()
    raise RunningLoopError(
        f"{call} waits for its answer and would block the event loop that runs in this thread: await {counterpart}"
        f"{'' if counterpart.startswith('heliograph.') else ', which heliograph.connect_async makes,'} instead, or "
        "call it by asyncio.to_thread"
    )


def _runs_cells() -> bool:
    """Return whether this thread runs the cells of a notebook."""
    shells = sys.modules.get("IPython")
    shell = shells.get_ipython() if shells is not None else None
    return getattr(shell, "kernel", None) is not None and threading.current_thread() is threading.main_thread()


def _name_of(work: Coroutine[Any, Any, object]) -> str:
    return str(getattr(work, "__name__", "this call"))


def _thread_for(work: Coroutine[Any, Any, object]) -> LoopThread:
    """Return the loop thread that runs ``work``; AlreadyClosedError if the process is ending."""
    try:
        return threads.current()
    except AlreadyClosedError:
        work.close()
        raise


class Handle(Generic[_Async]):
    """A sync handle.

    It makes its async handle when it is first used in a process. So after unpickling, and in a forked child, it opens
    connections of its own, and closing it there does not close the handle that it is a copy of.

    Once the exit hooks of the process have ended its loop thread, every call that waits raises AlreadyClosedError.

    Where an event loop runs in the caller's thread, every call that waits raises RunningLoopError; not in the cells of
    a notebook.
    """

    def __init__(self) -> None:
        self._made: tuple[int, _Async] | None = None  # id of the process that made it

    def open(self) -> Self:
        """Open the handle now instead of at its first use, and return it; the errors are those of its class."""
        self._run(self._async().open())
        return self

    def close(self) -> None:
        """Close the handle in this process; a second call, or one while the process ends, does nothing."""
        if not threads.has_ended:
            self._run(self._async().close())

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

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        refuse_on_running_loop(work, f"{type(self).__name__}.{_name_of(work)}", f"Async{type(self).__name__}")
        return _thread_for(work).run(work)

    def _start(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        return _thread_for(work).start(work)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ClientHandle(Handle[AsyncClient]):
    """The hand-written part of ``Client``.

    Args:
        options: Addresses and timeouts.
    """

    def __init__(self, options: ClientOptions) -> None:
        super().__init__()
        self.options = options

    def aio(self) -> AsyncClient:
        """Return the async client behind this one in this process, which lives on the loop thread. For handles only."""
        return self._async()

    @property
    def admin(self) -> BlockingAdmin:
        """Return the administration of the cluster, which acts in the role of this client.

        Its methods are those of ``helio``'s commands and wait for their answers; their errors are those of
        ``ClientAdmin``.
        """
        from heliograph.client.admin.admin import BlockingAdmin  # most programs administer nothing

        return BlockingAdmin(self._async().admin, self._run)

    @override
    def _make(self) -> AsyncClient:
        return AsyncClient(self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.options.service_urls)})"


class TopicHandle(Handle[_Async], Generic[_Async, _Options]):
    """The hand-written part of producers, consumers and readers."""

    def __init__(self, client: Client, options: _Options) -> None:
        super().__init__()
        self.client = client
        self.options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.options)


class ReceivingHandle(TopicHandle[_Consumer, ConsumerOptions], Generic[_Consumer]):
    """The hand-written part of consumers and readers."""

    @override
    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        refuse_on_running_loop(work, f"{type(self).__name__}.{_name_of(work)}", f"Async{type(self).__name__}")
        return _thread_for(work).run(work, self._give_back)

    def _give_back(self, result: object) -> None:
        """Keep messages that an interrupted call would have returned for the next call."""
        found = [result] if isinstance(result, Message) else result if isinstance(result, list) else []
        if messages := [each for each in found if isinstance(each, Message)]:
            self._async()._put_back(messages)


class TableViewHandle(TopicHandle[AsyncTableView[Received], TableViewOptions], Mapping[str, Received]):
    """The hand-written part of ``TableView``."""

    def updates(self) -> Iterator[tuple[str, Received | None]]:
        """Return an iterator of the changes from now on: keys with their new values, None for a key that was deleted.

        It waits for each change, and ends when the view is closed or its topic was terminated. A caller that is slower
        than the topic gets the newest value of each key, not each value.
        """
        return self._following(self._async().updates())

    def _following(self, updates: AsyncIterator[tuple[str, Received | None]]) -> Iterator[tuple[str, Received | None]]:
        async def update() -> tuple[str, Received | None]:
            return await updates.__anext__()

        while True:
            try:
                yield self._run(update())
            except StopAsyncIteration:
                return


def _unlock_in_child() -> None:
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_unlock_in_child)


def _close_abandoned(process: int, handle: AsyncHandle) -> None:
    """Leave the topic, or close the connections, in the background, after the sync handle was garbage-collected."""
    if process == os.getpid() and handle.is_open and not threads.has_ended:
        threads.current().start(handle.close())
