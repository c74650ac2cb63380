"""The sync client; ``make handles`` generates this file from ``heliograph/client/aio/client.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from re import Pattern
from typing import Any

from heliograph.base.clock import Duration
from heliograph.client import options as options_module
from heliograph.client.aio.consumer.interceptors import ConsumerInterceptor
from heliograph.client.aio.pattern_watch import pattern_text
from heliograph.client.aio.producer.interceptors import ProducerInterceptor
from heliograph.client.options import ConsumerOptions, ProducerOptions, TableViewOptions
from heliograph.client.schemas.schema import SchemaLike
from heliograph.client.sync.consumer import Consumer
from heliograph.client.sync.handle import ClientHandle
from heliograph.client.sync.producer import Producer
from heliograph.client.sync.reader import Reader
from heliograph.client.sync.table_view import TableView
from heliograph.client.sync.topic import Topic
from heliograph.client.types import InitialPosition, SubscriptionType, ToReceive, ToSend
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName


class Client(ClientHandle):
    """A client of one cluster, for all threads of one process.

    Threads may share it. In a forked child it opens connections of its own.

    It opens connections when they are first needed, one per broker, and all its handles share them. Handles are
    picklable: a pickle carries addresses and options, and an unpickled handle opens connections of its own. It carries
    a token or password only if ``carry_token`` asks for that; otherwise the environment of the other process names one.

    Args:
        options: Addresses and timeouts.
    """

    @property
    def service_urls(self) -> list[str]:
        """Return the addresses of the brokers for the first lookups."""
        return self._async().service_urls

    def ping(self) -> None:
        """Check that a broker can be reached, trying each address once.

        Raises:
            ConnectionLostError: No broker can be reached; the message lists each address with its failure.
            NotPermittedError: The broker refused the token.
        """
        self._run(self._async().ping())

    def topic(self, name: str) -> Topic:
        """Return a handle of a topic, which need not exist yet.

        Raises:
            InvalidTopicNameError: The name has no valid form.
        """
        return Topic(self, str(TopicName.parse(name)))

    def producer(
        self,
        topic: str,
        *,
        schema: SchemaLike[ToSend] = None,
        name: str | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        **options: Any,
    ) -> Producer[ToSend]:
        """Return a producer. It opens at its first use or on entering a ``with`` block.

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
            ProducerOptions, topic=full_name, schema=schema, name=name, interceptors=tuple(interceptors), **options
        )
        return Producer(self, built)

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
    ) -> Consumer[ToReceive]:
        """Return a consumer of one or several topics. It is subscribed when the call returns.

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
            TopicNotFoundError, ConnectionLostError, ...: The opening errors of ``Consumer``.
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
        return Consumer(self, built).open()

    def reader(
        self,
        topic: str,
        start: str | MessageId = "latest",
        *,
        inclusive: bool = False,
        schema: SchemaLike[ToReceive] = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        **options: Any,
    ) -> Reader[ToReceive]:
        """Return a reader, which reads a topic from a given position and acknowledges nothing.

        It is open when the call returns.

        Args:
            topic: Full or short name.
            start: ``earliest``, ``latest``, or the id of the message after which the reader starts.
            inclusive: Start with the message at ``start`` itself.
            schema: Type of the values, as for ``consumer``.
            interceptors: Objects that see each message before the caller.
            options: Further fields of ``heliograph.client.options.ConsumerOptions``.

        Raises:
            InvalidTopicNameError, InvalidMessageIdError, InvalidConfigError: A name or option is not acceptable.
            TopicNotFoundError, ConnectionLostError, ...: The opening errors of ``Reader``.
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
        return Reader(self, built).open()

    def table_view(self, topic: str, *, schema: SchemaLike[ToReceive] = None, **options: Any) -> TableView[ToReceive]:
        """Return a view of the latest value of each key of a topic. It is open when the call returns.

        Args:
            topic: Full or short name of a persistent topic.
            schema: Type of the values, as for ``consumer``.
            options: Further fields of ``heliograph.client.options.TableViewOptions``: ``keys_max`` (1,000,000).

        Raises:
            InvalidTopicNameError, InvalidConfigError, BadRequestError: A name or option is not acceptable.
            TopicNotFoundError, ConnectionLostError, ...: The opening errors of ``Consumer``.
        """
        full_name = str(TopicName.parse(topic))
        return TableView(self, options_module.build(TableViewOptions, topic=full_name, schema=schema, **options)).open()

    def request(
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
            value, key, properties: As ``Producer.send`` takes them.
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
        return self._run(
            self._async().request(
                topic, value, timeout=timeout, key=key, properties=properties, schema=schema, reply=reply
            )
        )

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of ``topic``, 0 for a topic without.

        Raises:
            InvalidTopicNameError: The name has no valid form.
            TopicNotFoundError: There is no such topic.
            ConnectionLostError, RequestTimeoutError: No broker could be reached in time.
        """
        return self._run(self._async().partitions(topic))
