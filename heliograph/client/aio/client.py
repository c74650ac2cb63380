"""The asyncio client, which makes all other handles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from random import Random
from re import Pattern
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from heliograph.base.clock import Duration
from heliograph.base.guard.shares import UnpackBudget
from heliograph.client import options as options_module
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.interceptors import ConsumerInterceptor
from heliograph.client.aio.consumer.reader import AsyncReader
from heliograph.client.aio.handle import AsyncHandle, HandleState
from heliograph.client.aio.pattern_watch import pattern_text
from heliograph.client.aio.producer.interceptors import ProducerInterceptor
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.client.aio.session import ClientSession
from heliograph.client.aio.table_view import AsyncTableView
from heliograph.client.aio.topic import AsyncTopic
from heliograph.client.options import ClientOptions, ConsumerOptions, ProducerOptions, TableViewOptions
from heliograph.client.schemas.schema import SchemaLike
from heliograph.client.types import InitialPosition, SubscriptionType, ToReceive, ToSend
from heliograph.operations.admin import AdminOperations
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.aio.requests.requester import Requester
    from heliograph.client.aio.requests.responder import AsyncResponder


class AsyncClient(AsyncHandle):
    """A client of one cluster, for one event loop of one process.

    It opens connections when they are first needed, one per broker, and all its handles share them. Handles are
    picklable: a pickle carries addresses and options, and an unpickled handle opens connections of its own. It carries
    a token or password only if ``carry_token`` asks for that; otherwise the environment of the other process names one.

    Args:
        options: Addresses and timeouts.
        random: Source of jitter and of starting points; only tests pass one.
    """

    def __init__(self, options: ClientOptions, *, random: Random | None = None) -> None:
        super().__init__()
        self.options = options
        self._random = random
        self.unpacked: UnpackBudget | None = None  # set by a program whose consumers serve strangers
        self._session: ClientSession | None = None
        self._requester: Requester | None = None  # once something was asked
        self._handles: dict[int, AsyncHandle] = {}  # by id: a table view compares as a mapping, and has no hash

    @property
    def service_urls(self) -> list[str]:
        """Return the addresses of the brokers for the first lookups."""
        return list(self.options.service_urls if self._session is None else self._session.lookup.service_urls)

    async def session(self) -> ClientSession:
        """Return the session of all handles; the first call opens the client in its event loop. For handles only."""
        if self._state is not HandleState.FINISHING:
            await self.open()
        elif self._session is None:
            await self._do_open()  # for a call that began before the client was closed
        assert self._session is not None, "an open client has a session"
        self._session.unpacked = self.unpacked
        return self._session

    @property
    def admin(self) -> AdminOperations:
        """Return the administration of the cluster, which acts in the role of this client: ``ClientAdmin``."""
        from heliograph.client.aio.client_admin import ClientAdmin  # most programs administer nothing

        return ClientAdmin(self)

    async def ping(self) -> None:
        """Check that a broker can be reached, trying each address once.

        Raises:
            ConnectionLostError: No broker can be reached; the message lists each address with its failure.
            NotPermittedError: The broker refused the token.
        """
        await (await self.session()).lookup.any_connection()

    def topic(self, name: str) -> AsyncTopic:
        """Return a handle of a topic, which need not exist yet.

        Raises:
            InvalidTopicNameError: The name has no valid form.
        """
        return AsyncTopic(self, str(TopicName.parse(name)))

    def producer(
        self,
        topic: str,
        *,
        schema: SchemaLike[ToSend] = None,
        name: str | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        **options: Any,
    ) -> AsyncProducer[ToSend]:
        """Return a producer. It opens when it is awaited, or else at its first use.

        Args:
            topic: Full or short name.
            schema: Type of the values: ``bytes``, ``str``, ``dict`` (JSON of any form), a pydantic model, a dataclass,
                ``numpy.ndarray``, ``pyarrow.RecordBatch``, ``pyarrow.Table``, a ``JsonSchema`` or an ``AvroSchema``.
                It is registered with the topic, which refuses one that is not compatible. None takes bytes and text.
            name: Name of the producer, unique on the topic and kept over reconnects; None lets the broker choose.
            interceptors: Objects that see each message before it is sent, and its outcome.
            options: Fields of ``heliograph.client.options.ProducerOptions``, such as ``batch_messages`` (1000),
                ``batch_bytes`` (128 KiB), ``linger_ms`` (1), ``compression``, ``send_timeout_ms``.

        Raises:
            InvalidTopicNameError, InvalidConfigError: A name or option is not acceptable.
            BadRequestError: The schema is none.
        """
        full_name = str(TopicName.parse(topic))
        built = options_module.build(
            ProducerOptions,
            topic=full_name,
            schema=schema,
            name=name,
            interceptors=tuple(interceptors),
            **options,
        )
        return AsyncProducer(self, built)

    def consumer(
        self,
        topic: str | Sequence[str] | Pattern[str],
        subscription: str,
        *,
        type: SubscriptionType = "exclusive",
        initial_position: InitialPosition = "latest",
        receiver_queue: int = 1000,
        schema: SchemaLike[ToReceive] = None,
        name: str | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        **options: Any,
    ) -> AsyncConsumer[ToReceive]:
        """Return a consumer of one or several topics. It subscribes when it is awaited, or else at its first use.

        Args:
            topic: Full or short name, or several of them; or a compiled regular expression for all topics of a
                namespace whose names match, also of those that appear later: ``re.compile("orders-.*")`` for
                ``public/default``, ``re.compile("tenant/namespace/orders-.*")`` for another one.
            subscription: Name of the subscription; its cursor outlives this consumer.
            type: ``exclusive``, ``shared``, ``failover`` or ``key_shared``.
            initial_position: Where the subscription starts if it does not exist yet.
            receiver_queue: Messages requested ahead of the caller, over all partitions.
            schema: Type of the values, as for ``producer``. A message is decoded with the version of the schema that
                it was written with, when its ``value`` is asked for. None leaves bytes.
            name: Shown in statistics; also decides the order of failover consumers.
            interceptors: Objects that see each message before the caller, and each acknowledgement.
            options: Further fields of ``heliograph.client.options.ConsumerOptions``, such as ``nack_delay_ms`` (1000).

        Raises:
            InvalidTopicNameError, InvalidConfigError, BadRequestError: A name or option is not acceptable.
            UnsupportedError: The expression has flags, or a form that RE2 does not have.
        """
        pattern = pattern_text(topic) if isinstance(topic, Pattern) else None
        names: Sequence[str] = [topic] if isinstance(topic, str) else () if isinstance(topic, Pattern) else topic
        built = options_module.build(
            ConsumerOptions,
            topics=tuple(map(str, map(TopicName.parse, names))),
            pattern=pattern,
            subscription=subscription,
            type=type,
            initial_position=initial_position,
            receiver_queue=receiver_queue,
            schema=schema,
            name=name,
            interceptors=tuple(interceptors),
            **options,
        )
        return AsyncConsumer(self, built)

    def reader(
        self,
        topic: str,
        start: str | MessageId = "latest",
        *,
        inclusive: bool = False,
        schema: SchemaLike[ToReceive] = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        **options: Any,
    ) -> AsyncReader[ToReceive]:
        """Return a reader, which reads a topic from a given position and acknowledges nothing.

        It opens when it is awaited, or else at its first use.

        Args:
            topic: Full or short name.
            start: ``earliest``, ``latest``, or the id of the message after which the reader starts.
            inclusive: Start with the message at ``start`` itself.
            schema: Type of the values, as for ``consumer``.
            interceptors: Objects that see each message before the caller.
            options: Further fields of ``heliograph.client.options.ConsumerOptions``.

        Raises:
            InvalidTopicNameError, InvalidMessageIdError, InvalidConfigError: A name, id or option is not acceptable.
        """
        start_id = start if isinstance(start, MessageId) else MessageId.parse(start)
        built = options_module.build(
            ConsumerOptions,
            **{"subscription": "", **options},
            topics=(str(TopicName.parse(topic)),),
            start=start_id,
            start_inclusive=inclusive,
            schema=schema,
            interceptors=tuple(interceptors),
        )
        return AsyncReader(self, built)

    def table_view(
        self, topic: str, *, schema: SchemaLike[ToReceive] = None, **options: Any
    ) -> AsyncTableView[ToReceive]:
        """Return a view of the latest value of each key of a topic. It opens when it is awaited.

        Args:
            topic: Full or short name of a persistent topic.
            schema: Type of the values, as for ``consumer``.
            options: Further fields of ``heliograph.client.options.TableViewOptions``: ``keys_max`` (1,000,000).

        Raises:
            InvalidTopicNameError, InvalidConfigError, BadRequestError: A name or option is not acceptable.
        """
        full_name = str(TopicName.parse(topic))
        return AsyncTableView(self, options_module.build(TableViewOptions, topic=full_name, schema=schema, **options))

    async def request(
        self,
        topic: str,
        value: Any,
        *,
        timeout: Duration = 30,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        schema: SchemaLike = None,
        reply: SchemaLike[ToReceive] = None,
    ) -> ToReceive:
        """Publish a request and return the answer of a responder: ``respond``, or any consumer that replies.

        The request is stored before it is answered. The first answer counts; if its responder dies, another one gets
        the request, so the function may run more than once.

        Args:
            topic: Full or short name.
            value, key, properties: As ``AsyncProducer.send`` takes them.
            timeout: Seconds, or a timedelta, for the whole answer. A request that is older is not begun.
            schema: Type of the value, as for ``producer``.
            reply: Type of the answer, as for ``consumer``; responders name the same one. None: bytes.

        Returns:
            The answer; None if the function returned None.

        Raises:
            RequestTimeoutError: There was no answer in time; the function may run nevertheless.
            RequestFailedError: The function failed; the message says how.
            QuotaExceededError: 10,000 requests of this client wait.
            TopicNotFoundError, NotPermittedError, BadRequestError, ...: The request was not published.
        """
        asked = self._requests().answers(
            topic, value, timeout=timeout, key=key, properties=properties, schema=schema, reply=reply
        )
        async with contextlib.aclosing(asked) as answers:
            async for answer in answers:
                return answer  # type: ignore[no-any-return]
        return None  # type: ignore[return-value]

    async def stream_request(
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
    ) -> AsyncGenerator[ToReceive]:
        """Publish a request and yield the parts of its answer as they come: ``async for token in ...``.

        Arguments and errors are those of ``request``.

        Args:
            resumes: Whether an answer that was begun may go on by another run of the function, behind the parts that
                came: only if it gives the same parts each time.
            buffer_bytes: Of parts that wait for the caller; more end the stream.

        Raises:
            ReplyInterruptedError: The responder died on the way, or a part was lost.
            QuotaExceededError: The caller takes the parts more slowly than they come.
        """
        asked = self._requests().answers(
            topic,
            value,
            timeout=timeout,
            key=key,
            properties=properties,
            schema=schema,
            reply=reply,
            takes_stream=True,
            resumes=resumes,
            buffer_bytes=buffer_bytes,
        )
        async with contextlib.aclosing(asked) as answers:
            async for answer in answers:
                yield answer

    def respond(
        self,
        topic: str,
        function: Callable[[Any], Any],
        *,
        concurrency: int = 8,
        schema: SchemaLike = None,
        reply: SchemaLike = None,
        **options: Any,
    ) -> AsyncResponder:
        """Return a responder, which answers the requests of a topic by a function from its opening to its closing.

        Args:
            topic: Full or short name; created if the namespace allows it.
            function: Gets the value of a request and returns the answer, None for none: a function, which runs on a
                thread, or a coroutine function. A generator of either kind answers ``stream_request`` by its parts.
            concurrency: Requests that are answered at a time.
            schema: Type of the requests: as for ``consumer``.
            reply: Type of the answers: as for ``producer``. None: bytes or text.
            options: Further fields of ``heliograph.client.options.ResponderOptions``: ``subscription``, ``name``.

        Raises:
            InvalidTopicNameError, InvalidConfigError, BadRequestError: A name or option is not acceptable.
        """
        from heliograph.client.aio.requests.responder import AsyncResponder  # most programs answer nothing

        built = options_module.build(
            options_module.ResponderOptions,
            topic=str(TopicName.parse(topic)),
            function=function,
            concurrency=concurrency,
            schema=schema,
            reply=reply,
            **options,
        )
        return AsyncResponder(self, built)

    def _requests(self) -> Requester:
        if self._requester is None:
            from heliograph.client.aio.requests.requester import Requester  # most programs ask nothing

            self._requester = Requester(self)
        return self._requester

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of ``topic``, 0 for a topic without.

        Raises:
            InvalidTopicNameError: The name has no valid form.
            TopicNotFoundError: There is no such topic.
            ConnectionLostError, RequestTimeoutError: No broker could be reached in time.
        """
        return await (await self.session()).partitions(TopicName.parse(topic))

    def adopt(self, handle: AsyncHandle) -> None:
        """Register a handle in use, to be closed with the client. For handles only."""
        self._handles[id(handle)] = handle

    def release(self, handle: AsyncHandle) -> None:
        """Forget a handle that was closed. For handles only."""
        self._handles.pop(id(handle), None)

    @override
    def _unfinished(self) -> Collection[asyncio.Future[None]]:
        return [call for handle in self._handles.values() for call in handle._unfinished()]

    @override
    async def _do_open(self) -> None:
        self._session = ClientSession(self.options, self._random or Random())

    @override
    async def _do_close(self) -> None:
        try:
            await asyncio.gather(*(handle.close() for handle in list(self._handles.values())))
        finally:
            if self._session is not None:
                await self._session.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncClient, (self.options,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.service_urls)})"
