"""A received message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.aio.delivery import Delivery

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Message:
    """One message as a consumer or reader got it. Picklable.

    Attributes:
        value: the payload.
        key: routing and ordering key, or None; base64 text where a stock producer's key was bytes.
        properties: names and values that the producer attached.
        message_id: where it lies; orders as the messages of one topic do.
        publish_time_ms: when the producer sent it, in ms since the epoch by the producer's clock.
        event_time_ms: the time that the producer's caller gave it, or None.
        redelivery_count: how often it was handed out before without being acknowledged.
        topic: full name, with the partition suffix.
        producer_name: who sent it.
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
    # What this process knows of the entry's unacknowledged messages; gone after a pickle.
    _delivery: Delivery | None = field(default=None, repr=False, compare=False)

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
        )
        return Message, plain
