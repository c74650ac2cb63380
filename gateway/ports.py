"""What the gateway asks of the rest: the client that carries messages, the admin interface, a view of the cluster.

``heliograph.AsyncClient`` and ``heliograph.admin.Admin`` fit these; tests put small in-memory ones in their place.
Docstrings say only what the gateway relies on.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heliograph.protocol.message_id import MessageId


class Message(Protocol):
    """A received message. Times are milliseconds since the epoch."""

    @property
    def value(self) -> bytes:
        """The payload."""

    @property
    def key(self) -> str | None:
        """The routing and ordering key."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The user's properties."""

    @property
    def message_id(self) -> MessageId:
        """Where the message stands in its topic."""

    @property
    def publish_time_ms(self) -> int:
        """When its producer sent it."""

    @property
    def event_time_ms(self) -> int | None:
        """When it happened, as its producer says; None or 0 when not said."""

    @property
    def redelivery_count(self) -> int:
        """How often it was handed out before."""

    @property
    def topic(self) -> str:
        """Full name of its topic (of the partition, for a partitioned one)."""


def without_payload(message: Message) -> Message:
    """The message with an empty payload: enough to acknowledge it, without keeping its bytes."""
    assert dataclasses.is_dataclass(message), "the client's messages are dataclasses"
    return dataclasses.replace(message, value=b"")


class Producer(Protocol):
    """Sends to one topic; sends are stored in call order (for a partitioned topic: per partition)."""

    async def enqueue(
        self,
        value: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Accept a message; the future gives its id once it is durable, or the error it failed with.

        It waits only while too much is unconfirmed, and raises only when nothing was accepted.
        """

    async def close(self) -> None:
        """Wait for what is queued, then let the producer go."""


class Consumer(Protocol):
    """One consumer of a subscription."""

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> Sequence[Message]:
        """At least one message when there is one within ``timeout`` seconds, at most ``max_messages``; else none."""

    async def ack_many(self, messages: Sequence[Any]) -> None:
        """Acknowledge messages or message ids; returns once that is durable."""

    async def ack_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to and with a message or id; returns once that is durable."""

    async def nack(self, message: Any) -> None:
        """Have a message or id delivered again."""

    async def seek(self, target: MessageId | str | int, *, inclusive: bool = False) -> None:
        """Go behind a message id (to it, if inclusive), to ``"earliest"``, ``"latest"`` or a publish time in ms."""

    async def unsubscribe(self) -> None:
        """Delete the subscription."""

    async def close(self) -> None:
        """Let the consumer go; what it did not acknowledge is delivered again."""


class Reader(Protocol):
    """Reads a topic without a durable subscription."""

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> Sequence[Message]:
        """As ``Consumer.receive_many``."""

    async def close(self) -> None:
        """Let the reader go."""


class Client(Protocol):
    """Makes producers, consumers and readers; each of these calls fails with an error of our tree."""

    def producer(self, topic: str, **options: Any) -> Awaitable[Producer]:
        """A producer on the topic, open once awaited."""

    def consumer(self, topic: str | Sequence[str], subscription: str, **options: Any) -> Awaitable[Consumer]:
        """A consumer of the subscription on one topic or several, subscribed once awaited."""

    def reader(self, topic: str, **options: Any) -> Awaitable[Reader]:
        """A reader of the topic, open once awaited."""


class Admin(Protocol):
    """Administrative calls; any broker can answer them. Topics are full names."""

    async def create_topic(self, topic: str, partitions: int = 0, persistence: dict[str, int] | None = None) -> object:
        """Create a topic. Raises TopicExistsError, NamespaceNotFoundError, InvalidTopicNameError."""

    async def delete_topic(self, topic: str, force: bool = False) -> object:
        """Delete a topic, all partitions of it. Raises TopicNotFoundError, TopicBusyError."""

    async def list_topics(self, namespace: str = "public/default") -> Sequence[Mapping[str, Any]]:
        """``{"name", "partitions"}`` of each topic; 0 partitions: not partitioned."""

    async def partitions(self, topic: str) -> int:
        """Number of partitions, 0 when not partitioned. Raises TopicNotFoundError."""

    async def topic_stats(self, topic: str) -> Mapping[str, Any]:
        """Stats in Pulsar's shape."""

    async def topic_internal_stats(self, topic: str) -> Mapping[str, Any]:
        """Internal stats in Pulsar's shape."""

    async def subscriptions(self, topic: str) -> Sequence[str]:
        """Names of the durable subscriptions."""

    async def create_subscription(self, topic: str, name: str, position: str = "latest") -> object:
        """Create a durable subscription. Raises SubscriptionExistsError."""

    async def delete_subscription(self, topic: str, name: str, force: bool = False) -> object:
        """Delete a subscription. Raises SubscriptionNotFoundError, ConsumerBusyError."""

    async def lookup(self, topic: str) -> Mapping[str, Any]:
        """``{"broker_id", "service_url", "actor_name"}`` of the topic's owner."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker that serves now."""

    broker_id: str
    service_url: str
    actor_name: str


@dataclass(frozen=True, slots=True)
class BookieView:
    """A bookie that serves now. Sizes are bytes, 0 where not known."""

    bookie_id: str
    address: str
    rack: str
    writable: bool
    free_bytes: int
    total_bytes: int


class ClusterView(Protocol):
    """Who serves now."""

    async def brokers(self) -> list[BrokerView]:
        """Brokers, by id."""

    async def bookies(self) -> list[BookieView]:
        """Bookies, writable and read-only, by id."""

    async def namespaces(self) -> list[str]:
        """``tenant/namespace`` of each, sorted."""

    async def close(self) -> None:
        """Let go of what the view holds."""
