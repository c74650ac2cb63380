"""A responder: it has a function make the answers to requests."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from typing_extensions import override

from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    HeliographError,
    MessageTooLargeError,
    RequestFailedError,
    TopicTerminatedError,
    failure_text,
)
from heliograph.base.guard.quiet_log import SparseLog
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.aio.requests.envelope import ReplyKind, ReplyMessage, Request
from heliograph.client.aio.requests.producers import KeptProducers
from heliograph.client.aio.session import HandleOwner
from heliograph.client.options import ConsumerOptions, ProducerOptions, ResponderOptions
from heliograph.client.schemas.choice import schema_of

CRASHES_MAX = 3  # responders that a request may take with it; then it is answered by a failure
RESTART_SECONDS = 1.0  # before a slot that failed to reach the broker goes on
REASON_CHARACTERS_MAX = 2_000
_END: Any = object()

log = logging.getLogger(__name__)


class AsyncResponder(AsyncHandle):
    """A function that answers the requests of a topic, several at a time, from its opening to its closing.

    A request is acknowledged once its answer was published: that of a responder that dies goes to another one at once,
    so the function may run more than once for one request. Closing lets the requests in hand end.

    Opening raises the errors of ``AsyncConsumer``.
    """

    def __init__(self, client: HandleOwner, options: ResponderOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options
        self.answered = 0  # requests whose function ended, well or by an error
        self.expired = 0  # requests whose callers had given up before or while they were answered
        self._reply = schema_of(options.reply)
        self._consumer: AsyncConsumer[Any] = AsyncConsumer(
            client,
            ConsumerOptions(
                (options.topic,),
                options.subscription,
                type="shared",
                initial_position="earliest",
                receiver_queue=0,  # no request waits behind one that takes long
                schema=options.schema,
                name=options.name,
            ),
        )
        self._producers = KeptProducers(client)
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="heliograph-responder")
        self._slots: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()  # slots that wait for a request
        self._is_stopping = False
        self._log = SparseLog(log)

    @property
    def topic(self) -> str:
        """Return the full name of the topic of the requests."""
        return self.options.topic

    @override
    async def _do_open(self) -> None:
        await self._consumer.open()
        loop = asyncio.get_running_loop()
        self._slots = {loop.create_task(self._serve()) for _ in range(self.options.concurrency)}
        self.client.adopt(self)

    @override
    async def _do_close(self) -> None:
        self._is_stopping = True
        for slot in self._idle:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
        await self._consumer.close()
        await self._producers.close()
        self._threads.shutdown(wait=False)
        self.client.release(self)

    # -- one request

    async def _serve(self) -> None:
        this = asyncio.current_task()
        assert this is not None, "a slot is a task"
        while not self._is_stopping:
            self._idle.add(this)
            try:
                message = await self._consumer.receive()
            except (AlreadyClosedError, TopicTerminatedError):
                return
            except HeliographError as error:
                self._log.warning("receiving", "no request of %s is taken for a moment: %s", self.topic, error)
                await asyncio.sleep(RESTART_SECONDS)
                continue
            finally:
                self._idle.discard(this)
            try:
                await self._handle(message)
            except HeliographError as error:  # it is delivered again, to this responder or another one
                self._log.warning("handling", "a request of %s is not acknowledged: %s", self.topic, error)

    async def _handle(self, message: Message[Any]) -> None:
        request = Request.of(message.properties, self.topic)
        seconds = None if request is None else (request.deadline_ms - wall_ms()) / 1000
        if seconds is not None and seconds <= 0:
            self.expired += 1
        else:
            try:
                async with asyncio.timeout(seconds) as limit:
                    await self._answer(message, request)
            except TimeoutError:
                if not limit.expired():
                    raise
                self.expired += 1
            else:
                self.answered += 1
        await self._consumer.ack(message)

    async def _answer(self, message: Message[Any], request: Request | None) -> None:
        run, number = uuid.uuid4().hex[:16], 0
        try:
            if message.crashes >= CRASHES_MAX:
                raise RequestFailedError(f"{message.crashes} responders ended while they answered it")
            async with contextlib.aclosing(self._values(message, request)) as values:
                async for kind, data in values:
                    if not await self._send(request, run, number, kind, data):
                        return  # the function need not go on
                    number += 1
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            this = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (this is None or this.cancelling()):
                raise  # not of something that the function awaited
            if request is None:
                self._log.warning("call", "a message of %s failed: %r", self.topic, error)
            text = str(error) if isinstance(error, RequestFailedError) else failure_text(error)
            await self._send(
                request, run, number, ReplyKind.ERROR, text[:REASON_CHARACTERS_MAX].encode(errors="backslashreplace")
            )

    async def _values(self, message: Message[Any], request: Request | None) -> AsyncGenerator[tuple[ReplyKind, bytes]]:
        """Yield what the function makes of a message, with the kind that each value is sent as."""
        function = self.options.function
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            if request is not None and not request.takes_stream:
                raise RequestFailedError("the answer is a stream: ask by stream_request")
            made = function(message.value)
            each = made if inspect.isasyncgen(made) else self._on_thread_each(made)
            async with contextlib.aclosing(each) as values:
                async for value in values:
                    yield ReplyKind.PART, self._encoded(value)
            yield ReplyKind.END, b""
            return
        if inspect.iscoroutinefunction(function):
            value = await function(message.value)
        else:
            value = await self._on_thread(functools.partial(function, message.value))
        yield (ReplyKind.END, b"") if value is None else (ReplyKind.VALUE, self._encoded(value))

    async def _send(self, request: Request | None, run: str, number: int, kind: ReplyKind, data: bytes) -> bool:
        """Publish a reply; return whether the reply topic could be reached, or nobody waits at one."""
        if request is None:
            return True
        reply = ReplyMessage(request.id, run, number, kind)
        # A producer that joins at once would create the topic of a client that has deleted it.
        options = functools.partial(ProducerOptions, request.reply_to, rejoin="when_sending")
        producer = self._producers.get(request.reply_to, options)
        try:
            await producer.send(data, properties=reply.properties)
        except MessageTooLargeError:
            raise
        except HeliographError as error:
            self._log.warning("reply", "a request of %s gets no reply: %s", self.topic, error)
            return False
        await self._producers.make_room()
        return True

    def _encoded(self, value: Any) -> bytes:
        if self._reply is not None:
            return self._reply.encode(value)
        if not isinstance(value, bytes | bytearray | memoryview | str):
            raise BadRequestError(f"the answer is {type(value).__name__}: name a schema by reply=", field="reply")
        return value.encode() if isinstance(value, str) else bytes(value)

    # -- threads

    async def _on_thread(self, call: Callable[[], Any]) -> Any:
        """Run a call on a thread. A late function keeps its slot until it ends: a thread cannot be stopped."""
        context = contextvars.copy_context()
        calling = asyncio.get_running_loop().run_in_executor(self._threads, context.run, _outcome, call)
        try:
            value, error = await asyncio.shield(calling)
        except asyncio.CancelledError:
            await asyncio.wait([calling])
            raise
        if error is not None:
            raise error
        return value

    async def _on_thread_each(self, values: Iterator[Any]) -> AsyncGenerator[Any]:
        while (value := await self._on_thread(functools.partial(next, values, _END))) is not _END:
            yield value


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what a call returns, or why it failed: a future takes neither StopIteration nor SystemExit."""
    try:
        return call(), None
    except StopIteration as error:
        return None, RuntimeError(repr(error))
    except BaseException as error:  # also SystemExit and KeyboardInterrupt, which end the loop that awaits a thread
        return None, error if isinstance(error, Exception) else RuntimeError(repr(error))
