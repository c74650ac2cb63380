"""A received message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic

from heliograph.base.clock import aware_time
from heliograph.base.errors import HeliographError
from heliograph.client.types import Received, Value
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.delivery import ReceivedEntry

DATA_BYTES_SHOWN = 64  # of a payload, in logs and notebooks
KEY_CHARACTERS_SHOWN = 64
ATTEMPT = "heliograph.delivery_attempt"  # properties of a message that was delivered before
CRASHES = "heliograph.crashes"
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True, eq=False, repr=False)
class Message(Generic[Received]):
    """One message as a consumer or reader received it. Picklable.

    Two messages are equal, and have one hash, if they have the same id in the same topic: a message that is delivered
    again is the same message.

    Attributes:
        data: The payload as it was received.
        message_id: Its position; ids of one topic compare as their messages are ordered.
        key: Routing and ordering key, or None; base64 text if a stock producer's key was bytes.
        properties: Names and values that the producer attached.
        publish_time_ms: When the producer sent it, in ms since the epoch by the producer's clock.
        event_time_ms: The time that the producer's caller gave it, or None.
        redelivery_count: How often it was given back: refused, or not acknowledged in time.
        topic: Full name, with the partition suffix.
        producer_name: Name of the producer that sent it.
        index: Its number in the topic or partition, counted from 0 by the broker; None if brokers do not count.
        broker_publish_time_ms: When the broker took it, in ms since the epoch by the broker's clock, or None.
        schema_version: The version of the topic's schema that it was written with, or None.
        crashes: How often a consumer that held it was lost with its connection; always 0 from brokers of others.
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
    crashes: int = 0
    # The entry it came in, with what this process knows of its unacknowledged messages; not part of a pickle.
    _delivery: ReceivedEntry | None = field(default=None)
    # Decoder of the payload, for a consumer with a schema; then the value, or why there is none.
    _decode: Callable[[bytes], Received | None] | None = field(default=None)
    _decoded: tuple[Received | None, HeliographError | None] | None = field(default=None)

    @property
    def value(self) -> Received:
        """Return the payload decoded by the consumer's schema; without a schema, the payload.

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
    def delivery_attempt(self) -> int:
        """Return the number of this delivery, from 1: those before ended in a refusal, too late, or in a crash."""
        return 1 + self.redelivery_count + self.crashes

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.message_id == other.message_id and self.topic == other.topic

    def __hash__(self) -> int:
        return hash(self.message_id)

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={_cut(self.key)}"
        return f"Message({self.topic}, {self.message_id}{key}, data={_shown(self.data)})"

    def _repr_html_(self) -> str:
        """Return a table of the attributes that are set, for a notebook."""
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._rows())
        return f"<table>{cells}</table>"

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "topic", self.topic
        yield "id", str(self.message_id)
        if self.key is not None:
            yield "key", _cut(self.key)
        yield "data", _shown(self.data)
        yield from ((f"property {name:.{KEY_CHARACTERS_SHOWN}}", _cut(text)) for name, text in self.properties.items())
        yield "published", f"{self.publish_time} by {self.producer_name:.{KEY_CHARACTERS_SHOWN}}"
        if self.event_time is not None:
            yield "event time", str(self.event_time)
        if self.redelivery_count:
            yield "given back before", str(self.redelivery_count)
        if self.crashes:
            yield "lost with a consumer before", str(self.crashes)

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
            self.crashes,
        )
        return _unpickled_message, (plain, self._outcome())


def _shown(data: bytes) -> str:
    """Return the beginning of a payload, and its length if there is more."""
    return repr(data) if len(data) <= DATA_BYTES_SHOWN else f"{data[:DATA_BYTES_SHOWN]!r}... ({len(data)} bytes)"


def _cut(text: str) -> str:
    return repr(text) if len(text) <= KEY_CHARACTERS_SHOWN else f"{text[:KEY_CHARACTERS_SHOWN]!r}..."


def _unpickled_message(plain: tuple[Any, ...], decoded: tuple[Any, HeliographError | None] | None) -> Message:
    """Return a message from a pickle, which holds the decoded value, since what decodes it stays behind."""
    message = Message(*plain)
    message._decoded = decoded
    return message


def null_value(data: bytes) -> None:
    """Return the value of a message whose producer sent none."""
