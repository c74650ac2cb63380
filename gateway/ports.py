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
        deliver_at: int | None = None,
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

    @property
    def has_reached_end(self) -> bool:
        """Whether all topics were terminated and everything of them was received and acknowledged."""

    async def unsubscribe(self) -> None:
        """Delete the subscription."""

    async def close(self) -> None:
        """Let the consumer go; what it did not acknowledge is delivered again."""


class Reader(Protocol):
    """Reads a topic without a durable subscription."""

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> Sequence[Message]:
        """As ``Consumer.receive_many``."""

    @property
    def has_reached_end(self) -> bool:
        """Whether the topic was terminated and everything of it was received."""

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


class SchemaAdmin(Protocol):
    """The schema of a topic. A schema is ``type`` with ``schema`` (text) or ``data`` (base64), and more when shown."""

    async def get(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """One version, the newest by default. Raises NotFoundError."""

    async def versions(self, topic: str) -> list[dict[str, Any]]:
        """Every version since the last deletion."""

    async def put(self, topic: str, schema: Mapping[str, Any]) -> int:
        """Add a version. Raises BadRequestError, IncompatibleSchemaError."""

    async def check(self, topic: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """``compatibility``, ``strategy``, ``reason``."""

    async def version_of(self, topic: str, schema: Mapping[str, Any]) -> int | None:
        """Which version a definition is."""

    async def delete(self, topic: str) -> int:
        """Start anew without a schema. Raises NotFoundError."""


class CursorAdmin(Protocol):
    """Subscriptions and their messages; see ``heliograph.admin_cursors.Cursors``."""

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        """Acknowledge the next entries."""

    async def skip_all(self, topic: str, subscription: str) -> None:
        """Acknowledge everything."""

    async def expire(self, topic: str, subscription: str | None, seconds: int) -> int:
        """Acknowledge what is older, of one or (None) of all subscriptions."""

    async def expire_to(self, topic: str, subscription: str, message_id: str, excluded: bool = False) -> int:
        """Acknowledge everything up to a message."""

    async def reset(self, topic: str, subscription: str, to: str | int, excluded: bool = False) -> None:
        """Go to a message id, ``earliest``, ``latest`` or a publish time in ms."""

    async def properties(self, topic: str, subscription: str) -> dict[str, str]:
        """What is attached to it."""

    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replace what is attached to it."""

    async def peek(self, topic: str, subscription: str, count: int = 1) -> list[dict[str, Any]]:
        """The next messages that are not acknowledged."""

    async def examine(self, topic: str, initial: str = "latest", number: int = 1) -> list[dict[str, Any]]:
        """The messages of an entry by its place. Raises NotFoundError."""

    async def message(self, topic: str, ledger_id: int, entry_id: int) -> list[dict[str, Any]]:
        """The messages of an entry. Raises NotFoundError."""

    async def message_id_at(self, topic: str, time_ms: int) -> str:
        """The first message at or after a time."""

    async def last_message_id(self, topic: str) -> str:
        """The newest message."""


class NamespaceAdmin(Protocol):
    """Tenants, namespaces (``tenant/namespace``) and policies by Heliograph's names of them."""

    async def tenants(self) -> Sequence[str]:
        """Names of the tenants."""

    async def tenant(self, name: str) -> Mapping[str, Any]:
        """``admin_roles`` and ``allowed_clusters``. Raises NotFoundError."""

    async def create_tenant(
        self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> object:
        """Raises ConflictError."""

    async def update_tenant(
        self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> object:
        """Raises NotFoundError."""

    async def delete_tenant(self, name: str) -> object:
        """Raises NotFoundError, ConflictError while it has namespaces."""

    async def list(self, tenant: str | None = None) -> Sequence[str]:
        """Namespaces of a tenant, or all. Raises NotFoundError."""

    async def create(
        self, namespace: str, bundles: int | None = None, policies: dict[str, Any] | None = None
    ) -> object:
        """Raises NotFoundError (no tenant), ConflictError, BadRequestError."""

    async def delete(self, namespace: str, force: bool = False) -> object:
        """Raises NamespaceNotFoundError, ConflictError while it has topics."""

    async def policies(self, namespace: str) -> Mapping[str, Any]:
        """Every policy. Raises NamespaceNotFoundError."""

    async def set_policies(self, namespace: str, values: Mapping[str, Any]) -> object:
        """Raises NamespaceNotFoundError, BadRequestError, InvalidQuorumError."""

    async def remove_policies(self, namespace: str, names: Sequence[str]) -> object:
        """Have some as they are by default."""

    async def topic_policies(self, topic: str, applied: bool = False) -> Mapping[str, Any]:
        """What a topic overrides, or all that holds for it. Raises TopicNotFoundError."""

    async def set_topic_policies(self, topic: str, values: Mapping[str, Any]) -> object:
        """Override some. Raises as ``set_policies``."""

    async def remove_topic_policies(self, topic: str, names: Sequence[str]) -> object:
        """Go by the namespace's again."""


class BrokerAdmin(Protocol):
    """Brokers and bundles."""

    async def list(self) -> Sequence[Mapping[str, Any]]:
        """Every live broker, with ``broker_id``, ``service_url``, ``is_leader``, ``is_draining``."""

    async def loads(self) -> Sequence[Mapping[str, Any]]:
        """The load report of each."""

    async def bundles(self, namespace: str) -> Mapping[str, Any]:
        """``boundaries``, and ``bundles`` with name, owner and load."""

    async def unload_bundle(self, namespace: str, bundle: str) -> object:
        """Have a bundle given away. Raises NotFoundError."""

    async def unload_namespace(self, namespace: str) -> object:
        """Have all of them given away."""

    async def split_bundle(self, namespace: str, bundle: str, boundary: str | int | None = None) -> Sequence[str]:
        """Cut a bundle in two; the names of the halves. Raises NotFoundError, BadRequestError."""


class Admin(Protocol):
    """Administrative calls; any broker can answer them. Topics are full names."""

    @property
    def schemas(self) -> SchemaAdmin:
        """The schemas of topics."""

    @property
    def namespaces(self) -> NamespaceAdmin:
        """Tenants, namespaces and policies."""

    @property
    def brokers(self) -> BrokerAdmin:
        """Brokers and bundles."""

    async def update_partitions(self, topic: str, partitions: int) -> object:
        """Have a partitioned topic grow. Raises BadRequestError when it has more already."""

    async def create_missing_partitions(self, topic: str) -> object:
        """Create partitions that should be there."""

    async def unload_topic(self, topic: str) -> object:
        """Close a topic where it is served."""

    @property
    def cursors(self) -> CursorAdmin:
        """Subscriptions and their messages."""

    async def create_topic(self, topic: str, partitions: int = 0, persistence: dict[str, int] | None = None) -> object:
        """Create a topic. Raises TopicExistsError, NamespaceNotFoundError, InvalidTopicNameError."""

    async def delete_topic(self, topic: str, force: bool = False) -> object:
        """Delete a topic, all partitions of it. Raises TopicNotFoundError, TopicBusyError."""

    async def list_topics(self, namespace: str = "public/default") -> Sequence[Mapping[str, Any]]:
        """``{"name", "partitions"}`` of each topic; 0 partitions: not partitioned."""

    async def partitions(self, topic: str, may_create: bool = False) -> int:
        """Number of partitions, 0 when there are none, or when use creates the topic. Raises TopicNotFoundError."""

    async def topic_stats(self, topic: str) -> Mapping[str, Any]:
        """Stats in Pulsar's shape."""

    async def topic_internal_stats(self, topic: str) -> Mapping[str, Any]:
        """Internal stats in Pulsar's shape."""

    async def terminate_topic(self, topic: str) -> Mapping[str, str]:
        """End a topic; ``ledger:entry`` of the last message by name of the topic or partition."""

    async def compact_topic(self, topic: str) -> object:
        """Begin to keep the latest message of each key. Raises ConflictError while that is under way."""

    async def compaction_status(self, topic: str) -> Mapping[str, Any]:
        """``status`` and ``lastError``."""

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

    async def close(self) -> None:
        """Let go of what the view holds."""
