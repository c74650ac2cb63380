"""The sync topic; ``make handles`` generates this file from ``heliograph/client/aio/topic.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heliograph.client.schemas.schema import SchemaLike
from heliograph.client.types import ToReceive, ToSend
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client.sync.client import Client
    from heliograph.client.sync.consumer import Consumer
    from heliograph.client.sync.producer import Producer
    from heliograph.client.sync.reader import Reader
    from heliograph.client.sync.table_view import TableView


class Topic:
    """A topic by name: a small picklable object that makes producers, consumers and readers of the topic.

    Attributes:
        client: The cluster.
        name: Full name of the topic.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def producer(self, *, schema: SchemaLike[ToSend] = None, **options: Any) -> Producer[ToSend]:
        """Return a producer of this topic; arguments and errors are those of ``Client.producer``."""
        return self.client.producer(self.name, schema=schema, **options)

    def consumer(
        self, subscription: str, *, schema: SchemaLike[ToReceive] = None, **options: Any
    ) -> Consumer[ToReceive]:
        """Return a consumer of this topic; arguments and errors are those of ``Client.consumer``."""
        return self.client.consumer(self.name, subscription, schema=schema, **options)

    def reader(
        self, start: str | MessageId = "latest", *, schema: SchemaLike[ToReceive] = None, **options: Any
    ) -> Reader[ToReceive]:
        """Return a reader of this topic; arguments and errors are those of ``Client.reader``."""
        return self.client.reader(self.name, start, schema=schema, **options)

    def table_view(self, *, schema: SchemaLike[ToReceive] = None, **options: Any) -> TableView[ToReceive]:
        """Return a table view of this topic; arguments and errors are those of ``Client.table_view``."""
        return self.client.table_view(self.name, schema=schema, **options)

    def partitions(self) -> int:
        """Return the number of partitions, 0 for a topic without; errors are those of ``Client.partitions``."""
        return self.client.partitions(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"
