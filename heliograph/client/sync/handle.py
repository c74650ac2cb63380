"""The hand-written part of the sync handles: each is a front of an async handle on the process's loop thread."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from typing_extensions import override

from heliograph.base.clock import Duration
from heliograph.base.errors import AlreadyClosedError, RunningLoopError
from heliograph.base.loop_thread import LoopThread, SharedLoopThread
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.aio.table_view import AsyncTableView
from heliograph.client.options import ClientOptions, ConsumerOptions, ResponderOptions, TableViewOptions
from heliograph.client.schemas.schema import SchemaLike
from heliograph.client.types import Received, ToReceive

if TYPE_CHECKING:
    from heliograph.client.admin.blocking import BlockingAdmin
    from heliograph.client.aio.requests.responder import AsyncResponder
    from heliograph.client.sync.client import Client

_Async = TypeVar("_Async", bound=AsyncHandle)
_Options = TypeVar("_Options")
_Consumer = TypeVar("_Consumer", bound=AsyncConsumer[Any])
_Result = TypeVar("_Result")

log = logging.getLogger(__name__)
threads = SharedLoopThread("heliograph-client")  # its event loop runs the async handles behind all sync ones
making = threading.RLock()  # re-entrant: making a handle makes its client's handle first
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


def _note_cut_off(future: Future[Any]) -> None:
    """Warn if a call that nobody waited for, such as ``send_async``, had not ended when the process did."""
    if threads.has_ended and future.cancelled():
        _warn_of_cut_off()


@functools.cache
def _warn_of_cut_off() -> None:
    """Warn once in a process."""
    log.warning(
        "the process ends before calls that it did not wait for, and their messages may not be stored: wait for the "
        "futures of send_async, or close the producer"
    )


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
        with making:
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
        future = _thread_for(work).start(work)
        future.add_done_callback(_note_cut_off)
        return future

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
        from heliograph.client.admin.blocking import BlockingAdmin  # most programs administer nothing

        return BlockingAdmin(self._async().admin, self._run)

    def stream_request(
        self,
        topic: str,
        value: Any,
        *,
        timeout: Duration = 30,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        schema: SchemaLike = None,
        reply: SchemaLike[ToReceive] = None,
        resumes: bool = False,
        buffer_bytes: int = 16 << 20,
    ) -> Iterator[ToReceive]:
        """Publish a request and yield the parts of its answer as they come: ``for token in ...``.

        Arguments and errors are those of ``AsyncClient.stream_request``.
        """
        parts = self._async().stream_request(
            topic,
            value,
            timeout=timeout,
            key=key,
            properties=properties,
            schema=schema,
            reply=reply,
            resumes=resumes,
            buffer_bytes=buffer_bytes,
        )

        async def part() -> ToReceive:
            return await anext(parts)

        try:
            while True:
                try:
                    yield self._run(part())
                except StopAsyncIteration:
                    return
        finally:
            if not threads.has_ended:
                threads.current().start(parts.aclose())

    def respond(
        self,
        topic: str,
        function: Callable[[Any], Any],
        *,
        concurrency: int = 8,
        schema: SchemaLike = None,
        reply: SchemaLike = None,
        **options: Any,
    ) -> Responder:
        """Return a responder, which answers the requests of a topic by a function until it is closed.

        It is open when the call returns. Coroutine functions run on the thread that all handles share, others on
        threads of their own. Arguments and errors are those of ``AsyncClient.respond``.
        """
        made = self._async().respond(topic, function, concurrency=concurrency, schema=schema, reply=reply, **options)
        return Responder(cast("Client", self), made.options).open()

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


class Responder(TopicHandle["AsyncResponder", ResponderOptions]):
    """A function that answers the requests of a topic, several at a time, until it is closed.

    Threads may share it. A copy from a pickle, as in a Ray actor, is a further responder, which begins when it is
    opened.

    A request is acknowledged once its answer was published: that of a responder that dies goes to another one at once,
    so the function may run more than once for one request. Closing lets the requests in hand end.

    Opening raises the errors of ``Consumer``.
    """

    @property
    def topic(self) -> str:
        """Return the full name of the topic of the requests."""
        return self.options.topic

    @property
    def answered(self) -> int:
        """Return how many requests the function has ended, well or by an error."""
        return self._async().answered

    @property
    def expired(self) -> int:
        """Return how many requests came whose callers had given up before or while they were answered."""
        return self._async().expired

    @override
    def _make(self) -> AsyncResponder:
        from heliograph.client.aio.requests.responder import AsyncResponder  # most programs answer nothing

        return AsyncResponder(self.client.aio(), self.options)


def _unlock_in_child() -> None:
    global making
    making = threading.RLock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_unlock_in_child)


def _close_abandoned(process: int, handle: AsyncHandle) -> None:
    """Leave the topic, or close the connections, in the background, after the sync handle was garbage-collected."""
    if process == os.getpid() and handle.is_open and not threads.has_ended:
        threads.current().start(handle.close())
