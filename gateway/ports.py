"""The interfaces that the gateway needs: the handles of the client, the admin interface, a view of the cluster.

Tests put small in-memory implementations in the places of all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.consumer.reader import AsyncReader
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.metadata.model import BrokerRegistration
from heliograph.metadata.operator_records import ClusterReport, Wish
from heliograph.operations.admin import AdminOperations

MessagePort = Message[Any]
ProducerPort = AsyncProducer[Any]
ConsumerPort = AsyncConsumer[Any]
ReaderPort = AsyncReader[Any]
AdminPort = AdminOperations  # the table of operations; tests put their own calls behind it


def without_payload(message: MessagePort) -> MessagePort:
    """Return the message with an empty payload: enough to acknowledge it, without keeping its bytes.

    Its redelivery count is 0, so that no negative acknowledgement of it is its last: the client would store a dead
    letter without a payload. The message becomes one when the broker delivers it again, with its payload.
    """
    return dataclasses.replace(message, data=b"", redelivery_count=0)


@dataclass(frozen=True, slots=True)
class OutboundMessage:
    """A message to publish. Times are milliseconds since the epoch. Without a payload it is a null value."""

    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None
    deliver_at: int | None = None


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

    async def brokers(self) -> list[BrokerRegistration]:
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
            HeliographError: as the method raises.
        """
