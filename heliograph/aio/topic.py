"""A handle of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.aio.client import AsyncClient
    from heliograph.aio.consumer import AsyncConsumer
    from heliograph.aio.producer import AsyncProducer
    from heliograph.aio.reader import AsyncReader


class AsyncTopic:
    """A topic by name: a small picklable starting point for producers, consumers and readers.

    Attributes:
        client: the cluster.
        name: the full name.
    """

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.client = client
        self.name = name

    def producer(self, **options: Any) -> AsyncProducer:
        """See ``AsyncClient.producer``."""
        return self.client.producer(self.name, **options)

    def consumer(self, subscription: str, **options: Any) -> AsyncConsumer:
        """See ``AsyncClient.consumer``."""
        return self.client.consumer(self.name, subscription, **options)

    def reader(self, start: str | MessageId = "latest", **options: Any) -> AsyncReader:
        """See ``AsyncClient.reader``."""
        return self.client.reader(self.name, start, **options)

    async def partitions(self) -> int:
        """See ``AsyncClient.partitions``."""
        return await self.client.partitions(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"
