"""A received message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.delivery import ReceivedEntry

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Message:
    """One message as a consumer or reader received it. Picklable.

    Attributes:
        value: The payload.
        message_id: Its position; ids of one topic compare as their messages are ordered.
        key: Routing and ordering key, or None; base64 text if a stock producer's key was bytes.
        properties: Names and values that the producer attached.
        publish_time_ms: When the producer sent it, in ms since the epoch by the producer's clock.
        event_time_ms: The time that the producer's caller gave it, or None.
        redelivery_count: How often it was delivered before without being acknowledged.
        topic: Full name, with the partition suffix.
        producer_name: Name of the producer that sent it.
        index: Its number in the topic or partition, counted from 0 by the broker; None if brokers do not count.
        broker_publish_time_ms: When the broker took it, in ms since the epoch by the broker's clock, or None.
    """

    value: bytes
    message_id: MessageId
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)
    publish_time_ms: int = 0
    event_time_ms: int | None = None
    redelivery_count: int = 0
    topic: str = ""
    producer_name: str = ""
    index: int | None = None
    broker_publish_time_ms: int | None = None

    @property
    def data(self) -> bytes:
        """Return the payload as it was received."""
        return self.value

    # The entry it came in, with what this process knows of its unacknowledged messages; not part of a pickle.
    _delivery: ReceivedEntry | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        plain = (
            self.value,
            self.message_id,
            self.key,
            dict(self.properties),
            self.publish_time_ms,
            self.event_time_ms,
            self.redelivery_count,
            self.topic,
            self.producer_name,
            self.index,
            self.broker_publish_time_ms,
        )
        return Message, plain
