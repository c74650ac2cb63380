"""The requests of a client that wait, and the topics that their replies come to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from typing_extensions import override

from heliograph.base.clock import Duration, seconds_of, wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    ChecksumError,
    HeliographError,
    QuotaExceededError,
    RequestTimeoutError,
    UnsupportedError,
)
from heliograph.client.aio.client_admin import ClientAdmin
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.aio.requests.envelope import (
    BUFFERED_BYTES_MAX,
    ReplyMessage,
    ReplyOrder,
    Request,
    new_reply_topic,
)
from heliograph.client.aio.requests.producers import KeptProducers
from heliograph.client.aio.session import ClientSession, HandleOwner
from heliograph.client.options import ConsumerOptions, ProducerOptions
from heliograph.client.schemas.choice import schema_of
from heliograph.client.schemas.schema import DecodeValue, SchemaLike
from heliograph.protocol.topic_name import TopicName

OPEN_REQUESTS_MAX = 10_000  # of one client # I15
TIMEOUT_SECONDS_MAX = 24 * 3600.0
REPLIES_TOGETHER = 1_000  # taken from a reply topic at once
UNREADABLE_SECONDS = 0.1  # after an entry that cannot be unpacked
LEFT_SECONDS = 3600  # after which the broker deletes the reply topic of a client that was killed

log = logging.getLogger(__name__)


class WaitingRequest:
    """A request whose caller waits, with what has come of its answer."""

    def __init__(self, answer: ReplyOrder) -> None:
        self.answer = answer
        self.changed = asyncio.Event()
        self.replies: ReplyTopic | None = None  # where its answer comes

    def put(self, reply: ReplyMessage) -> bool:
        """Take a reply; return whether it counts."""
        counts = self.answer.put(reply)
        if counts:
            self.changed.set()
        return counts

    async def next(self) -> bytes | None:
        """Return the next value once it is there; None: there is no further one. Raises why the answer failed."""
        while (value := self.answer.take()) is None:
            if self.answer.failure is not None:
                raise self.answer.failure
            if self.answer.has_ended:
                return None
            self.changed.clear()
            await self.changed.wait()
        return value


class _Opened:
    """The owner of a session that is in use also while its client is being closed."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def session(self) -> ClientSession:
        return self._session

    def adopt(self, handle: AsyncHandle) -> None:
        """Do nothing: it owns no handles."""

    def release(self, handle: AsyncHandle) -> None:
        """Do nothing: it owns no handles."""


class ReplyTopic:
    """The consumer of the replies to the requests in one namespace."""

    def __init__(self, client: HandleOwner, topic: TopicName, waiting: Mapping[str, WaitingRequest]) -> None:
        self.name = new_reply_topic(topic)
        self.dropped = 0  # replies that no request waited for
        self._client = client
        self._waiting = waiting
        self._consumer: AsyncConsumer[bytes] = AsyncConsumer(client, ConsumerOptions((self.name,), "caller"))
        self._following: asyncio.Task[None] | None = None
        self._admin: ClientAdmin | None = None  # once it was opened
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Consume the topic, if that was not begun. The errors are those of consumers."""
        async with self._opening:
            if self._following is not None:
                return
            await self._consumer.open()
            self._following = asyncio.get_running_loop().create_task(self._follow())
            self._admin = ClientAdmin(_Opened(await self._client.session()))
            with contextlib.suppress(HeliographError):  # the role may not administer it: its empty record stays
                policies = {"inactive_delete_seconds": LEFT_SECONDS}
                await self._admin.namespaces.set_topic_policies(self.name, policies)

    async def close(self) -> None:
        """Leave the topic and delete it."""
        await end_task(self._following)
        await self._consumer.close()
        if self._admin is not None:
            with contextlib.suppress(HeliographError):
                await self._admin.delete_topic(self.name, force=True)

    @property
    def has_ended(self) -> bool:
        """Return whether replies come no more: the consumer has failed for good."""
        return self._following is not None and self._following.done()

    async def _follow(self) -> None:
        failure: HeliographError = AlreadyClosedError("the topic of the replies was closed")
        try:
            while True:
                try:
                    messages = await self._consumer.receive_many(REPLIES_TOGETHER)
                except (UnsupportedError, ChecksumError) as error:
                    log.warning("an entry of %s cannot be unpacked: %s", self.name, error)
                    await asyncio.sleep(UNREADABLE_SECONDS)
                    continue
                for message in messages:
                    reply = ReplyMessage.of(message.properties, message.data)
                    request = None if reply is None else self._waiting.get(reply.id)
                    if reply is None or request is None or not request.put(reply):
                        self.dropped += 1
                with contextlib.suppress(HeliographError):  # what is not stored is not delivered again
                    await self._consumer.ack_many(messages)
        except HeliographError as error:
            failure = error
        for request in self._waiting.values():
            if request.replies is not self:
                continue
            request.answer.fail(failure)
            request.changed.set()


class Requester(AsyncHandle):
    """The requests of one client, in one event loop.

    Args:
        client: Whose they are.
    """

    def __init__(self, client: HandleOwner) -> None:
        super().__init__()
        self._client = client
        self._waiting: dict[str, WaitingRequest] = {}
        self._replies: dict[str, ReplyTopic] = {}  # by namespace
        self._producers = KeptProducers(client)

    @property
    def dropped(self) -> int:
        """Return how many replies came that no caller waited for any more."""
        return sum(topic.dropped for topic in self._replies.values())

    async def answers(
        self,
        topic: str,
        value: Any,
        *,
        timeout: Duration,
        key: str | None,
        properties: Mapping[str, str] | None,
        schema: SchemaLike,
        reply: SchemaLike,
        takes_stream: bool = False,
        resumes: bool = False,
        buffer_bytes: int = BUFFERED_BYTES_MAX,
    ) -> AsyncGenerator[Any]:
        """Publish a request and yield the values of its answer; the request is forgotten when the caller leaves.

        Raises:
            RequestTimeoutError: The answer did not end in time.
            QuotaExceededError: The client has too many open requests, or takes a stream too slowly.
            BadRequestError, RequestFailedError, ReplyInterruptedError, ...: As ``AsyncClient.request`` says.
        """
        seconds = seconds_of(timeout, "timeout")
        if not 0 < seconds <= TIMEOUT_SECONDS_MAX:
            limit = f"above 0, at most {TIMEOUT_SECONDS_MAX:.0f} s"
            raise BadRequestError(f"the timeout is {timeout!r}", field="timeout", limit=limit)
        if buffer_bytes <= 0:
            raise BadRequestError(f"buffer_bytes is {buffer_bytes}", field="buffer_bytes", limit="above 0")
        name = TopicName.parse(topic)
        decode = _decoder(reply)
        await self.open()
        if len(self._waiting) >= OPEN_REQUESTS_MAX:
            raise QuotaExceededError("too many requests wait for replies", limit=f"{OPEN_REQUESTS_MAX} of one client")
        end, deadline_ms = asyncio.get_running_loop().time() + seconds, wall_ms() + int(seconds * 1000)
        waiting = WaitingRequest(ReplyOrder(resumes=resumes, bytes_max=buffer_bytes))
        id = uuid.uuid4().hex
        self._waiting[id] = waiting
        try:
            async with _until(end, topic, seconds):
                replies = waiting.replies = await self._reply_topic(name)
                request = Request(id, replies.name, deadline_ms, takes_stream)
                await self._publish(str(name), value, schema, key, {**(properties or {}), **request.properties})
            while True:
                async with _until(end, topic, seconds):
                    data = await waiting.next()
                if data is None:
                    return
                yield decode(data)
        finally:
            del self._waiting[id]

    async def _reply_topic(self, topic: TopicName) -> ReplyTopic:
        found = self._replies.get(topic.namespace)
        if found is None or found.has_ended:
            ended, found = found, ReplyTopic(self._client, topic, self._waiting)
            self._replies[topic.namespace] = found
            if ended is not None:
                with contextlib.suppress(HeliographError):
                    await ended.close()
        await found.open()
        return found

    async def _publish(
        self, topic: str, value: Any, schema: SchemaLike, key: str | None, properties: Mapping[str, str]
    ) -> None:
        kept = (topic, schema if isinstance(schema, type | None) else id(schema))
        await self._producers.make_room()
        producer = self._producers.get(kept, lambda: ProducerOptions(topic, schema=schema, rejoin="when_sending"))
        try:
            await producer.send(value, key=key, properties=properties)
        except HeliographError:
            if not producer.is_open:
                await self._producers.forget(kept)
            raise

    @override
    async def _do_open(self) -> None:
        self._client.adopt(self)

    @override
    async def _do_close(self) -> None:
        for waiting in self._waiting.values():
            waiting.answer.fail(AlreadyClosedError("the client was closed"))
            waiting.changed.set()
        await self._producers.close()
        for topic in self._replies.values():
            with contextlib.suppress(HeliographError):
                await topic.close()
        self._client.release(self)


@contextlib.asynccontextmanager
async def _until(end: float, topic: str, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(end):
            yield
    except TimeoutError as error:
        if isinstance(error, HeliographError):
            raise
        reason = f"no answer of {topic} within {seconds:g} s; the request may be carried out nevertheless"
        raise RequestTimeoutError(reason, field="timeout") from None


def _decoder(reply: SchemaLike) -> DecodeValue:
    schema = schema_of(reply)
    return bytes if schema is None else schema.decoder(None)
