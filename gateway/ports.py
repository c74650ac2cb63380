"""The interfaces that the gateway needs: the client, the admin interface, a view of the cluster.

``AsyncClient`` and ``Admin`` of ``heliograph.client`` implement them; tests use small in-memory implementations.
Docstrings say only what the gateway relies on.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heliograph.auth.principal import Principal
from heliograph.metadata.operator_records import ClusterReport, Wish
from heliograph.operations.admin import AdminOperations
from heliograph.protocol.message_id import MessageId


class MessagePort(Protocol):
    """A received message. Times are milliseconds since the epoch."""

    @property
    def value(self) -> Any:
        """Return the payload, or what the receiver's schema makes of it; None for a null value.

        Raises:
            HeliographError: the payload does not fit the schema, or that of its version is not known.
        """

    @property
    def data(self) -> bytes:
        """Return the payload."""

    @property
    def key(self) -> str | None:
        """Return the routing and ordering key."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the user's properties."""

    @property
    def message_id(self) -> MessageId:
        """Return the position of the message in its topic."""

    @property
    def publish_time_ms(self) -> int:
        """Return when the producer sent the message."""

    @property
    def event_time_ms(self) -> int | None:
        """Return the event time that the producer set; None or 0 when it set none."""

    @property
    def redelivery_count(self) -> int:
        """Return how often the message was delivered before."""

    @property
    def topic(self) -> str:
        """Return the full name of the topic (of the partition, for a partitioned topic)."""


def without_payload(message: MessagePort) -> MessagePort:
    """Return the message with an empty payload: enough to acknowledge it, without keeping its bytes.

    Its redelivery count is 0, so that no negative acknowledgement of it is its last: the client would store a dead
    letter without a payload. The message becomes one when the broker delivers it again, with its payload.
    """
    assert dataclasses.is_dataclass(message), "the client's messages are dataclasses"
    return dataclasses.replace(message, data=b"", redelivery_count=0)


@dataclass(frozen=True, slots=True)
class OutboundMessage:
    """A message to publish. Times are milliseconds since the epoch. Without a payload it is a null value."""

    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None
    deliver_at: int | None = None


class ProducerPort(Protocol):
    """A producer of one topic. Messages are stored in call order (for a partitioned topic: per partition)."""

    async def enqueue(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at: int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Accept a message; None is a null value. The future gives its id once it is durable, or why it failed.

        The call waits only while too much is unconfirmed, and raises only when the message was not accepted.
        """

    async def close(self) -> None:
        """Wait until the queued messages are confirmed or have failed, then close the producer."""


class ConsumerPort(Protocol):
    """One consumer of a subscription."""

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> Sequence[MessagePort]:
        """Return up to ``max_messages`` as soon as there is one, none when ``timeout`` seconds pass first."""

    async def ack_many(self, messages: Sequence[Any]) -> None:
        """Acknowledge messages or message ids; returns once that is durable."""

    async def ack_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to and including a message or id; returns once that is durable."""

    async def nack(self, message: Any) -> None:
        """Request that a message or id is delivered again."""

    async def seek(self, target: MessageId | str | int, *, inclusive: bool = False) -> None:
        """Seek to after a message id (to it, if inclusive), ``"earliest"``, ``"latest"`` or a publish time in ms."""

    @property
    def has_reached_end(self) -> bool:
        """Return whether all topics were terminated and everything of them was received and acknowledged."""

    async def unsubscribe(self) -> None:
        """Delete the subscription."""

    async def close(self) -> None:
        """Close the consumer; its unacknowledged messages are delivered again."""


class ReaderPort(Protocol):
    """A reader of one topic, without a durable subscription."""

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> Sequence[MessagePort]:
        """Return up to ``max_messages`` as soon as there is one, none when ``timeout`` seconds pass first."""

    @property
    def has_reached_end(self) -> bool:
        """Return whether the topic was terminated and everything of it was received."""

    async def close(self) -> None:
        """Close the reader."""


class ClientPort(Protocol):
    """The source of producers, consumers and readers; each of these calls fails with an error of our tree.

    Attributes:
        unpacked: the UnpackBudget of its consumers, once it is set.
    """

    unpacked: Any

    def producer(self, topic: str, **options: Any) -> Awaitable[ProducerPort]:
        """Return a producer of the topic, open once awaited."""

    def consumer(self, topic: str | Sequence[str], subscription: str, **options: Any) -> Awaitable[ConsumerPort]:
        """Return a consumer of the subscription on one topic or several, subscribed once awaited."""

    def reader(self, topic: str, **options: Any) -> Awaitable[ReaderPort]:
        """Return a reader of the topic, open once awaited."""

    def request(
        self,
        topic: str,
        value: Any,
        *,
        timeout: float,
        key: str | None,
        properties: Mapping[str, str] | None,
        schema: Any,
    ) -> Awaitable[bytes | None]:
        """Publish a request, and return the reply to it; None if the reply has no value."""

    def stream_request(
        self,
        topic: str,
        value: Any,
        *,
        timeout: float,
        key: str | None,
        properties: Mapping[str, str] | None,
        schema: Any,
        buffer_bytes: int,
    ) -> AsyncGenerator[bytes]:
        """Publish a request, and yield the parts of the reply."""


AdminPort = AdminOperations  # the table of operations; tests put their own calls behind it


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A registered broker."""

    broker_id: str
    service_url: str
    actor_name: str
    service_url_tls: str = ""


@dataclass(frozen=True, slots=True)
class BookieView:
    """A registered bookie. Sizes are bytes, 0 where not known."""

    bookie_id: str
    address: str
    rack: str
    writable: bool
    free_bytes: int
    total_bytes: int


class ClusterView(Protocol):
    """The registered brokers and bookies, and the report of the cluster."""

    async def brokers(self) -> list[BrokerView]:
        """Return the brokers, by id."""

    async def bookies(self) -> list[BookieView]:
        """Return the bookies, writable and read-only, by id."""

    async def report(self) -> ClusterReport:
        """Return the report of the cluster.

        Raises:
            HeliographError: it cannot be read.
        """

    async def wishes(self) -> list[Wish]:
        """Return the changes of the cluster that were asked for and are open, or ended lately, in order of time."""

    async def close(self) -> None:
        """Close the view's connections."""


class PartsPort(Protocol):
    """The actors of the cluster. They ask for no credentials: callers of these methods check the rights."""

    async def names(self) -> list[str]:
        """Return the names of all parts that live or start."""

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        """Call a method of a part.

        Raises:
            NotFoundError: the cluster has no such part.
            HeliographError: what the method raises.
        """


class ClosableClient(ClientPort, Protocol):
    """A client that its user closes."""

    async def close(self) -> None:
        """Close the client's connections."""


class AgentFactory(Protocol):
    """Makes what acts for a caller."""

    def client(self, principal: Principal) -> ClosableClient:
        """Return a client whose connections name the caller's role; it connects when it is used."""

    def admin(self, principal: Principal) -> AdminPort:
        """Return an administration whose operations need the caller's rights."""
