"""A handle of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heliograph.client.schemas.schema import SchemaLike
from heliograph.client.types import ToReceive, ToSend
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.consumer import AsyncConsumer
    from heliograph.client.aio.consumer.reader import AsyncReader
    from heliograph.client.aio.producer.producer import AsyncProducer
    from heliograph.client.aio.table_view import AsyncTableView


class AsyncTopic:
    """A topic by name: a small picklable object that makes producers, consumers and readers of the topic.

    Attributes:
        client: The cluster.
        name: Full name of the topic.
    """

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.client = client
        self.name = name

    def producer(self, *, schema: SchemaLike[ToSend] = None, **options: Any) -> AsyncProducer[ToSend]:
        """Return a producer of this topic; arguments and errors are those of ``AsyncClient.producer``."""
        return self.client.producer(self.name, schema=schema, **options)

    def consumer(
        self, subscription: str, *, schema: SchemaLike[ToReceive] = None, **options: Any
    ) -> AsyncConsumer[ToReceive]:
        """Return a consumer of this topic; arguments and errors are those of ``AsyncClient.consumer``."""
        return self.client.consumer(self.name, subscription, schema=schema, **options)

    def reader(
        self, start: str | MessageId = "latest", *, schema: SchemaLike[ToReceive] = None, **options: Any
    ) -> AsyncReader[ToReceive]:
        """Return a reader of this topic; arguments and errors are those of ``AsyncClient.reader``."""
        return self.client.reader(self.name, start, schema=schema, **options)

    def table_view(self, *, schema: SchemaLike[ToReceive] = None, **options: Any) -> AsyncTableView[ToReceive]:
        """Return a table view of this topic; arguments and errors are those of ``AsyncClient.table_view``."""
        return self.client.table_view(self.name, schema=schema, **options)

    async def partitions(self) -> int:
        """Return the number of partitions, 0 for a topic without; errors are those of ``AsyncClient.partitions``."""
        return await self.client.partitions(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"
