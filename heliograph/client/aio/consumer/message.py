"""A received message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic

from heliograph.base.clock import aware_time
from heliograph.base.errors import HeliographError
from heliograph.client.types import Received, Value
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.delivery import ReceivedEntry

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Message(Generic[Received]):
    """One message as a consumer or reader received it. Picklable.

    Attributes:
        data: The payload as it was received.
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
        schema_version: The version of the topic's schema that it was written with, or None.
    """

    data: bytes
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

    schema_version: int | None = None
    # The entry it came in, with what this process knows of its unacknowledged messages; not part of a pickle.
    _delivery: ReceivedEntry | None = field(default=None, repr=False, compare=False)
    # What makes the value of the payload, for a consumer with a schema; then the value, or why there is none.
    _decode: Callable[[bytes], Received | None] | None = field(default=None, repr=False, compare=False)
    _decoded: tuple[Received | None, HeliographError | None] | None = field(default=None, repr=False, compare=False)

    @property
    def value(self) -> Received:
        """Return what the payload means by the schema of the consumer; without a schema, the payload.

        The payload is decoded when the value is first asked for. A null value is None, which the type does not tell:
        only a producer that sends None makes one.

        Raises:
            ProtocolError: The payload does not fit the schema. The message may be acknowledged or not, as any other.
            NotFoundError, ResourceError, ConnectionLostError, ...: Why its version of the schema is not known.
        """
        decoded = self._decoded or self._outcome()
        if decoded is None:
            return self.data  # type: ignore[return-value]  # without a schema, values are bytes
        if decoded[1] is not None:
            raise decoded[1]
        return decoded[0]  # type: ignore[return-value]  # None is a null value

    @property
    def publish_time(self) -> datetime:
        """Return ``publish_time_ms`` as an aware time, in UTC."""
        return aware_time(self.publish_time_ms)

    @property
    def event_time(self) -> datetime | None:
        """Return ``event_time_ms`` as an aware time, in UTC, or None."""
        return None if self.event_time_ms is None else aware_time(self.event_time_ms)

    @property
    def broker_publish_time(self) -> datetime | None:
        """Return ``broker_publish_time_ms`` as an aware time, in UTC, or None."""
        return None if self.broker_publish_time_ms is None else aware_time(self.broker_publish_time_ms)

    def with_value(self, value: Value) -> Message[Value]:
        """Return a copy with another value, as an interceptor may hand it on."""
        original: Message[Any] = self
        return replace(original, _decode=None, _decoded=(value, None))

    def _outcome(self) -> tuple[Received | None, HeliographError | None] | None:
        if self._decode is not None and self._decoded is None:
            try:
                self._decoded = self._decode(self.data), None
            except HeliographError as error:
                self._decoded = None, error
        return self._decoded

    def __reduce__(self) -> tuple[Any, ...]:
        plain = (
            self.data,
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
            self.schema_version,
        )
        return _unpickled_message, (plain, self._outcome())


def _unpickled_message(plain: tuple[Any, ...], decoded: tuple[Any, HeliographError | None] | None) -> Message:
    """Return a message from a pickle, which holds the decoded value, since what decodes it stays behind."""
    message = Message(*plain)
    message._decoded = decoded
    return message


def null_value(data: bytes) -> None:
    """Return the value of a message whose producer sent none."""
