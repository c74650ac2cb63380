"""An entry as a consumer received it, and the messages in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heliograph.base.errors import ProtocolError
from heliograph.base.guard.shares import HeldBytes
from heliograph.client.aio.consumer.message import ATTEMPT, CRASHES, NO_PROPERTIES, Message, null_value
from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import INLINE_BYTES_MAX, UNCOMPRESSED_BYTES_MAX
from heliograph.protocol.message_id import bits_of, received_id, to_signed
from heliograph.protocol.schema import version_of

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.partition import PartitionConsumer

SMALL_PART = 0.25  # of the messages of a batch, up to which a look for those that are wanted is the quicker way
VERSION_BYTES = 8  # of a schema; other brokers may note versions of another form
_NOTHING = memoryview(b"")
# Fields of each message's metadata: key, properties, event time; and the decoder of the value.
_Fields = tuple[str | None, Mapping[str, str], int | None, Callable[[bytes], Any] | None]


class ReceivedEntry:
    """One received entry.

    Making it raises ChecksumError or ProtocolError if the entry was damaged on the way.

    Attributes:
        consumer: The consumer that received it.
        broker_publish_time_ms: When the broker took it; None if the broker did not note that.
        last_index: Index of its last message in the topic; None if the broker did not note that.
        epoch: The consumer's epoch at that time; a delivery of an earlier epoch is never handed out.
        seeks: How often the consumer had sought at that time; acknowledging it after a further seek has no effect.
        permits: Permits of the consumer that it took.
        crashes: How often its messages were lost with a consumer.
        lone_crashes: Of these, how often callers of its client had nothing else.
        size: Bytes of its payload as received.
        unacknowledged: Bit i set means that message i was delivered and is not acknowledged.
        others: Bit i set means that message i was not delivered: it is another consumer's, or was acknowledged before.
        returned: The messages that were requested again, a bit each; another delivery has them.
        reached: The messages below this index were handed out, those from it on wait in the inbox.
        earlier_chunks: Positions of the earlier chunks of the same message.
    """

    __slots__ = (
        "__weakref__",
        "_decode",
        "_failure",
        "_held",
        "_is_batch",
        "_plain",
        "_unpacking",
        "_version",
        "broker_publish_time_ms",
        "consumer",
        "count",
        "crashes",
        "earlier_chunks",
        "entry_id",
        "epoch",
        "last_index",
        "ledger_id",
        "lone_crashes",
        "metadata",
        "others",
        "payload",
        "permits",
        "reached",
        "redelivery_count",
        "returned",
        "seeks",
        "size",
        "unacknowledged",
    )

    def __init__(self, consumer: PartitionConsumer, command: pb.CommandMessage, section: memoryview) -> None:
        self.consumer = consumer
        self.epoch = consumer.epoch
        self.seeks = consumer.seeks
        position = command.message_id
        self.ledger_id = to_signed(position.ledger_id)
        self.entry_id = to_signed(position.entry_id)
        self.redelivery_count = command.redelivery_count
        self.crashes, self.lone_crashes = command.crashes, command.lone_crashes
        self.broker_publish_time_ms: int | None = None
        self.last_index: int | None = None
        metadata, payload, noted = entries.received(section)
        if noted is not entries.NO_BROKER_METADATA:
            self.broker_publish_time_ms = noted.broker_timestamp if noted.HasField("broker_timestamp") else None
            self.last_index = noted.index if noted.HasField("index") else None
        self.metadata, self.payload, self.size = metadata, payload, len(payload)
        self._is_batch = entries.is_batch(metadata)
        self.count = self.permits = self.unacknowledged = 1
        if self._is_batch:
            self.count = entries.message_count(metadata)
            if self.count > entries.ENTRY_MESSAGES_MAX:
                raise ProtocolError(
                    f"an entry has {self.count} messages", limit=f"{entries.ENTRY_MESSAGES_MAX} messages"
                )
            self.unacknowledged = (1 << self.count) - 1
        self.others = self.returned = self.reached = 0
        delivered = command.ack_set
        if delivered:
            self.others = self.unacknowledged & ~bits_of(delivered)
            self.unacknowledged ^= self.others
        if self._is_batch or delivered:
            self.permits = self.unacknowledged.bit_count()
        self.earlier_chunks: Sequence[tuple[int, int]] = ()
        self._plain: bytes | None = None
        self._decode: Callable[[bytes], Any] | None = None
        self._version: int | None = None  # of the schema
        self._failure: Exception | None = None
        self._unpacking: asyncio.Future[None] | None = None
        self._held: HeldBytes | None = None  # of the plain payload

    @property
    def position(self) -> tuple[int, int]:
        return self.ledger_id, self.entry_id

    @property
    def published_ms(self) -> int:
        """When the broker took it, if it noted that, and otherwise when the producer sent it: the time to seek by."""
        return self.metadata.publish_time if self.broker_publish_time_ms is None else self.broker_publish_time_ms

    @property
    def needs_unpacking(self) -> bool:
        """Whether ``unpack`` comes before ``messages``: for a long payload, or a schema that is not known yet."""
        if self.consumer.decoders is None and not entries.is_compressed(self.metadata):
            return False
        return self._needs_thread or self._needs_schema

    @property
    def _needs_schema(self) -> bool:
        decoders = self.consumer.decoders
        if decoders is None or self._decode is not None:
            return False
        self._decode = decoders.known(self.metadata.schema_version)
        return self._decode is None

    @property
    def _needs_thread(self) -> bool:
        metadata = self.metadata
        if not entries.is_compressed(metadata) or metadata.encryption_keys:
            return False
        if self._plain is not None or self._failure is not None:
            return False
        return max(metadata.uncompressed_size, len(self.payload)) > INLINE_BYTES_MAX

    @property
    def in_hand(self) -> int:
        """Return the messages, a bit each, that callers have and have not acknowledged or refused."""
        if self.consumer.is_closed:
            return 0
        return self.unacknowledged & ~self.returned & (1 << self.reached) - 1

    def tell_in_hand(self, *, is_alone: bool) -> asyncio.Future[Any] | None:
        """Do what ``InHand`` asks of a delivery."""
        return self.consumer.tell_in_hand(self, is_alone=is_alone)

    def leave_out(self, bits: int) -> None:
        """Hand out none of these messages: an earlier delivery of the entry still has them."""
        bits &= self.unacknowledged
        self.others |= bits
        self.unacknowledged ^= bits

    def abandon(self) -> None:
        """Hand out none of the messages that are left: all that is not acknowledged was requested again."""
        self.epoch = -1

    async def unpack(self, timeout: float | None) -> bool:
        """Decompress the payload on a thread and fetch its schema, once for all callers.

        Return whether that was done in ``timeout`` seconds. A payload that cannot be decompressed is done, too:
        ``messages`` raises the error.
        """
        if self._unpacking is None or self._unpacking.cancelled():
            self._unpacking = asyncio.ensure_future(self._unpack())
        await asyncio.wait((self._unpacking,), timeout=timeout)
        return self._unpacking.done()

    async def _unpack(self) -> None:
        if self._needs_schema and (decoders := self.consumer.decoders) is not None:
            self._decode = await decoders.fetch(self.metadata.schema_version)
        if not self._needs_thread:
            return
        budget, metadata = self.consumer.unpacked, self.metadata
        if budget is not None:
            size = min(metadata.uncompressed_size, UNCOMPRESSED_BYTES_MAX)
            self._held = await budget.take(self.consumer.tenant, size)
        try:
            self._plain = await asyncio.to_thread(entries.plain_payload, self.metadata, self.payload)
        except Exception as error:  # also want of memory: ``messages`` raises it, and the next entry is another one
            self._failure = error

    def messages(self) -> Iterator[Message]:
        """Return the unacknowledged messages, in order. A batch is taken apart message by message, which can raise.

        Raises:
            UnsupportedError: The payload is compressed with an unknown codec.
            ChecksumError, ProtocolError: The payload is damaged.
        """
        if self._failure is not None:
            raise self._failure
        metadata, plain = self.metadata, self._plain
        if plain is None:
            is_packed = entries.is_compressed(metadata)
            plain = entries.plain_payload(metadata, self.payload) if is_packed else bytes(self.payload)
        self._plain = None
        version = metadata.schema_version
        if version:
            self._version = version_of(version) if len(version) == VERSION_BYTES else None
        self.payload = _NOTHING  # a message that the caller keeps must not keep the received bytes in memory
        if self._is_batch:
            return self._batch(plain) if self._held is None else self._held.during(self._batch(plain))
        self._held = None
        self.reached = 1
        return iter((self._single(plain),) if self.unacknowledged else ())

    def _batch(self, plain: bytes) -> Iterator[Message]:
        """Yield the messages of a batch. This is where a consumer that catches up spends its time: a call less for each
        message, or a field of protobuf less, is worth a tenth of it."""
        topic, partition, todo = self.consumer.topic_name, self.consumer.partition, self.unacknowledged
        publish_time, producer_name = self.metadata.publish_time, self.metadata.producer_name
        last: pb.SingleMessageMetadata | None = None
        is_small_part = todo.bit_count() < self.count * SMALL_PART
        found = entries.iterate_some(self.metadata, plain, todo) if is_small_part else None
        for index, (single, value) in found or enumerate(entries.iterate_batch(self.metadata, plain)):
            if single is not last:  # messages in a row share their metadata
                last, is_left_out = single, single.compacted_out
                key, properties, event_time, decode = self._fields_of(single)
            if is_left_out or not todo >> index & 1:
                continue
            self.reached = index + 1
            yield Message(
                value,
                received_id(self.ledger_id, self.entry_id, partition, index, self.count, topic),
                key,
                properties and dict(properties),  # a caller may change those of one message
                publish_time,
                event_time,
                self.redelivery_count,
                topic,
                producer_name,
                None if self.last_index is None else self.last_index - max(self.count - 1 - index, 0),
                self.broker_publish_time_ms,
                self._version,
                self.crashes,
                self,
                decode,
            )

    def _single(self, value: bytes) -> Message:
        part, metadata = self.consumer, self.metadata
        key, properties, event_time, decode = self._fields_of(metadata)
        return Message(
            value,
            received_id(
                self.ledger_id,
                self.entry_id,
                part.partition,
                -1,
                0,
                part.topic_name,
                self.earlier_chunks[0] if self.earlier_chunks else None,
            ),
            key,
            properties,
            metadata.publish_time,
            event_time,
            self.redelivery_count,
            part.topic_name,
            metadata.producer_name,
            self.last_index,
            self.broker_publish_time_ms,
            self._version,
            self.crashes,
            self,
            decode,
        )

    def _fields_of(self, metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> _Fields:
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        event_time = metadata.event_time if metadata.HasField("event_time") else None
        decode = null_value if metadata.null_value else self._decode
        return key, self._properties(metadata), event_time, decode

    def _properties(self, metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> Mapping[str, str]:
        """Return the properties of the producer, and the attempt unless it is the first."""
        pairs = metadata.properties
        properties = {pair.key: pair.value for pair in pairs} if pairs else NO_PROPERTIES
        if not (self.redelivery_count or self.crashes):
            return properties
        attempt = 1 + self.redelivery_count + self.crashes
        return {**properties, ATTEMPT: str(attempt), CRASHES: str(self.crashes)}
