"""The sync client: the place that handles come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph.aio.client import AsyncClient
from heliograph.consumer import Consumer
from heliograph.handle import Handle
from heliograph.options import ClientOptions
from heliograph.producer import Producer
from heliograph.protocol.message_id import MessageId
from heliograph.reader import Reader
from heliograph.topic import Topic
from heliograph.types import InitialPosition, SubscriptionType


class Client(Handle[AsyncClient]):
    """A cluster, seen from one process. Thread-safe, picklable and usable in forked children.

    Args:
        options: addresses and patience.
    """

    def __init__(self, options: ClientOptions) -> None:
        super().__init__()
        self.options = options

    @property
    def service_urls(self) -> list[str]:
        """Addresses of the brokers that are asked first."""
        return self._async().service_urls

    def ping(self) -> None:
        """See ``AsyncClient.ping``."""
        self._run(lambda client: client.ping())

    def topic(self, name: str) -> Topic:
        """See ``AsyncClient.topic``."""
        return Topic(self, self._async().topic(name).name)

    def producer(self, topic: str, *, name: str | None = None, **options: Any) -> Producer:
        """A producer, which opens at its first use or on entering a ``with`` block; see ``AsyncClient.producer``."""
        return Producer(self, self._async().producer(topic, name=name, **options).options)

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
    ) -> Consumer:
        """A consumer, subscribed when this returns; see ``AsyncClient.consumer``.

        Raises:
            ConsumerBusyError, TopicNotFoundError, ConnectionLostError, ...: the opening errors of ``AsyncConsumer``.
        """
        made = self._async().consumer(
            topic,
            subscription,
            type=type,
            initial_position=initial_position,
            receiver_queue=receiver_queue,
            name=name,
            **options,
        )
        return Consumer(self, made.options).open()

    def reader(
        self, topic: str, start: str | MessageId = "latest", *, inclusive: bool = False, **options: Any
    ) -> Reader:
        """A reader, in its place when this returns; see ``AsyncClient.reader``."""
        return Reader(self, self._async().reader(topic, start, inclusive=inclusive, **options).options).open()

    def partitions(self, topic: str) -> int:
        """See ``AsyncClient.partitions``."""
        return self._run(lambda client: client.partitions(topic))

    def aio(self) -> AsyncClient:
        """The async client behind this one in this process. It lives on the loop thread: for handles only."""
        return self._async()

    def _make(self) -> AsyncClient:
        return AsyncClient(self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self.options,)

    def __repr__(self) -> str:
        return f"Client({', '.join(self.options.service_urls)})"
