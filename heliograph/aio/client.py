"""The asyncio client: the place that handles come from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from heliograph import options as options_module
from heliograph.aio.consumer import AsyncConsumer
from heliograph.aio.handle import AsyncHandle
from heliograph.aio.producer import AsyncProducer
from heliograph.aio.reader import AsyncReader
from heliograph.aio.session import Session
from heliograph.aio.topic import AsyncTopic
from heliograph.options import ClientOptions, ConsumerOptions, ProducerOptions
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from heliograph.types import InitialPosition, SubscriptionType


class AsyncClient(AsyncHandle):
    """A cluster, seen from one event loop of one process.

    Connections are opened when they are first needed, one per broker, and shared by all handles. Handles are
    picklable: a pickle carries addresses and options, and the handle opens anew where it is unpickled.

    Args:
        options: addresses and patience.
        random: source of jitter and starting points; only tests pass one.
    """

    def __init__(self, options: ClientOptions, *, random: Random | None = None) -> None:
        super().__init__()
        self.options = options
        self._random = random
        self._session: Session | None = None
        self._handles: set[AsyncHandle] = set()

    @property
    def service_urls(self) -> list[str]:
        """Addresses of the brokers that are asked first."""
        return list(self.options.service_urls if self._session is None else self._session.lookup.service_urls)

    async def session(self) -> Session:
        """What this client's handles share; made in the loop that first needs it."""
        await self.open()
        assert self._session is not None, "an open client has a session"
        return self._session

    async def ping(self) -> None:
        """Makes sure that a broker can be reached, trying each address once.

        Raises:
            ConnectionLostError: none can; the message lists each address with its failure.
            NotPermittedError: the token was refused.
        """
        await (await self.session()).lookup.any_connection()

    def topic(self, name: str) -> AsyncTopic:
        """A handle of a topic, which need not exist yet.

        Raises:
            InvalidTopicNameError: the name has no valid form.
        """
        return AsyncTopic(self, str(TopicName.parse(name)))

    def producer(self, topic: str, *, name: str | None = None, **options: Any) -> AsyncProducer:
        """A producer; await it to open it at once, or just use it.

        Args:
            topic: full or short name.
            name: kept over reconnects, unique on the topic; None lets the broker choose.
            options: fields of ``heliograph.options.ProducerOptions``, such as ``batch_messages`` (1000),
                ``batch_bytes`` (128 KiB), ``linger_ms`` (1), ``compression``, ``send_timeout_ms``.

        Raises:
            InvalidTopicNameError, InvalidConfigError: a name or option is not acceptable.
        """
        full_name = str(TopicName.parse(topic))
        return AsyncProducer(self, options_module.build(ProducerOptions, topic=full_name, name=name, **options))

    def consumer(
        self,
        topic: str | Sequence[str],
        subscription: str,
        *,
        type: SubscriptionType = "exclusive",
        initial_position: InitialPosition = "latest",
        receiver_queue: int = 1000,
        name: str | None = None,
        **options: Any,
    ) -> AsyncConsumer:
        """A consumer of one or several topics; await it to subscribe at once, or just use it.

        Args:
            topic: full or short name, or several of them.
            subscription: its cursor outlives this consumer.
            type: ``exclusive``, ``shared``, ``failover`` or ``key_shared``.
            initial_position: where a subscription starts that does not exist yet.
            receiver_queue: messages asked for ahead, over all partitions.
            name: shown in statistics, and decides the order of failover consumers.
            options: further fields of ``heliograph.options.ConsumerOptions``, such as ``nack_delay_ms`` (1000).

        Raises:
            InvalidTopicNameError, InvalidConfigError, BadRequestError: a name or option is not acceptable.
        """
        names = [topic] if isinstance(topic, str) else topic
        built = options_module.build(
            ConsumerOptions,
            topics=tuple(str(TopicName.parse(each)) for each in names),
            subscription=subscription,
            type=type,
            initial_position=initial_position,
            receiver_queue=receiver_queue,
            name=name,
            **options,
        )
        return AsyncConsumer(self, built)

    def reader(
        self, topic: str, start: str | MessageId = "latest", *, inclusive: bool = False, **options: Any
    ) -> AsyncReader:
        """A reader: it follows a topic from a place of its own and acknowledges nothing.

        Args:
            topic: full or short name.
            start: ``earliest``, ``latest`` or the id of a message, behind which the reader starts.
            inclusive: start with the message at ``start`` itself.
            options: further fields of ``heliograph.options.ConsumerOptions``.

        Raises:
            InvalidTopicNameError, InvalidMessageIdError, InvalidConfigError: a name, place or option is not acceptable.
        """
        place = MessageId.parse(start) if isinstance(start, str) else start
        built = options_module.build(
            ConsumerOptions,
            **{"subscription": "", **options},
            topics=(str(TopicName.parse(topic)),),
            start=place,
            start_inclusive=inclusive,
        )
        return AsyncReader(self, built)

    async def partitions(self, topic: str) -> int:
        """Partitions of ``topic``, 0 when it has none.

        Raises:
            InvalidTopicNameError, TopicNotFoundError, ConnectionLostError, RequestTimeoutError.
        """
        return await (await self.session()).partitions(TopicName.parse(topic))

    def adopt(self, handle: AsyncHandle) -> None:
        """Notes an open handle, to be closed with the client."""
        self._handles.add(handle)

    def release(self, handle: AsyncHandle) -> None:
        """A handle was closed."""
        self._handles.discard(handle)

    async def _do_open(self) -> None:
        self._session = Session(self.options, self._random or Random())

    async def _do_close(self) -> None:
        try:
            await asyncio.gather(*(handle.close() for handle in list(self._handles)))
        finally:
            if self._session is not None:
                await self._session.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncClient, (self.options,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.service_urls)})"
