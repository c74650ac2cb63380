"""A handle of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client import Client
    from heliograph.consumer import Consumer
    from heliograph.producer import Producer
    from heliograph.reader import Reader


class Topic:
    """A topic by name: a small picklable starting point for producers, consumers and readers.

    Attributes:
        client: the cluster.
        name: the full name.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def producer(self, **options: Any) -> Producer:
        """See ``Client.producer``."""
        return self.client.producer(self.name, **options)

    def consumer(self, subscription: str, **options: Any) -> Consumer:
        """See ``Client.consumer``."""
        return self.client.consumer(self.name, subscription, **options)

    def reader(self, start: str | MessageId = "latest", **options: Any) -> Reader:
        """See ``Client.reader``."""
        return self.client.reader(self.name, start, **options)

    def partitions(self) -> int:
        """See ``Client.partitions``."""
        return self.client.partitions(self.name)

    def __repr__(self) -> str:
        return f"Topic({self.name})"
