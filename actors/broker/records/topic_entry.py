"""An entry of a topic in the broker: the producer's bytes, unchanged, and the few facts that dispatch needs.

The broker's own metadata (``entry_stamp.py``) stands in front of the producer's bytes, unless an earlier release stored
the entry.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from heliograph.actors.broker.records.position import Position
from heliograph.base.errors import HeliographError
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.tracing import tracer as tracing
from heliograph.tracing.context import TraceContext

# Memory of the Python objects around a payload: those of the entry 220, its numbers 130, its place in a cache 100.
ENTRY_OVERHEAD_BYTES = 450
COPIED_BYTES_MAX = 32 << 10  # an entry that was read from a bookie is copied out of the answer up to this size  # I15


@dataclass(slots=True)  # not frozen, which doubles the cost of making one; it changes once, in ``stamp``
class TopicEntry:
    """One entry. ``messages`` is its cost in permits; all chunks of one message carry the same ``chunk_uuid``."""

    payload: bytes | memoryview  # as it is stored: from the broker's metadata on, if there is any
    messages: int
    is_batch: bool
    is_marker: bool
    chunk_uuid: str | None
    is_last_chunk: bool
    publish_time_ms: int  # by the producer's clock: data, which decides nothing but where a seek by time goes
    key: bytes | None = None  # its ``sticky_key``, once that was asked for
    deliver_at_ms: int = 0  # delivery time on shared subscriptions; 0: at once
    live: int | None = None  # of a compacted batch: the messages that are left, one bit each
    broker_bytes: int = 0  # the size of the broker's metadata in front
    stored_ms: int = 0  # by the topic's clock; 0: not noted
    latest_ms: int = 0  # the latest publish time in the topic up to this entry; 0: not noted
    counted: int = 0  # the messages of the topic up to and including this entry (``message_count.py``); 0: not noted
    key_hashes: Sequence[int] | None = None  # of its messages (``message_keys.py``); None: not read
    trace: TraceContext | None = None  # in which its message was sent, if it is followed
    ends: Sequence[int] = ()  # where each message ends in the plain payload, noted with the hashes; (): not read

    def stored_by(self, closed_ms: int) -> int:
        """Return when it was stored: at the latest when its ledger was closed, at which the next ledger goes on (I21).

        It is later only where the next owner could not read the last entries, and had a clock that was behind.

        Args:
            closed_ms: when its ledger was closed; 0 if it is open.
        """
        return min(self.stored_ms, closed_ms) if self.stored_ms and closed_ms else self.stored_ms or closed_ms

    @property
    def last_batch_index(self) -> int:
        return self.messages - 1 if self.live is None else self.live.bit_length() - 1

    @property
    def sticky_key(self) -> bytes:
        """Return the key that Key_Shared dispatches by: ordering key, key, or a unique value. Other subscriptions never
        ask for it, so it is read late."""
        if self.key is None:
            self.key = _sticky_key(codec.metadata_of(self.payload))
        return self.key

    @property
    def is_divisible(self) -> bool:
        """Return whether consumers can read its messages one by one: it is a batch and not encrypted."""
        return self.is_batch and not codec.metadata_of(self.payload).encryption_keys

    @staticmethod
    def read(
        section: bytes | memoryview, *, check: bool, copies: bool = False, has_key_read: bool = False
    ) -> TopicEntry:
        """Decode an entry from the wire or from a ledger.

        Args:
            check: verify its checksum first, and that it can have as many messages as it says: a producer sent it.
            copies: copy a small entry, which would keep all that it came in. ``stamp`` copies entries of any size.
            has_key_read: read its ``sticky_key`` now, which later takes a second reading of the metadata.

        Raises:
            ChecksumError: the bytes were damaged.
            ProtocolError: these bytes are not an entry.
            BadRequestError: it cannot have as many messages as it says.
        """
        metadata, broker_bytes = codec.parse(section, check=check)
        stored_ms = latest_ms = counted = 0
        if broker_bytes:
            noted = codec.broker_metadata_in(section, broker_bytes)
            stored_ms, latest_ms, counted = noted.broker_timestamp, noted.latest_published, noted.messages
        chunks, has_field = metadata.num_chunks_from_msg, metadata.HasField
        is_batch = has_field("num_messages_in_batch")
        if is_batch and check:
            codec.check_count(metadata, len(section))
        return TopicEntry(
            bytes(section) if copies and len(section) <= COPIED_BYTES_MAX else section,
            codec.message_count(metadata) if is_batch else 1,
            is_batch,
            has_field("marker_type"),
            metadata.uuid if chunks > 1 else None,
            chunks > 0 and metadata.chunk_id == chunks - 1,
            metadata.publish_time,
            _sticky_key(metadata) if has_key_read else None,
            metadata.deliver_at_time,
            None,
            broker_bytes,
            stored_ms,
            latest_ms,
            counted,
            None,
            None if tracing.active is None else tracing.active.context_in(section),
        )

    def with_payload(self, payload: bytes) -> TopicEntry:
        """Return the entry with other bytes, which have as many messages. ``dataclasses.replace`` takes 20 times as
        long."""
        return TopicEntry(
            payload,
            self.messages,
            self.is_batch,
            self.is_marker,
            self.chunk_uuid,
            self.is_last_chunk,
            self.publish_time_ms,
            broker_bytes=self.broker_bytes,
            stored_ms=self.stored_ms,
            trace=self.trace,
        )

    def client_bytes(self) -> bytes | memoryview:
        return memoryview(self.payload)[self.broker_bytes :] if self.broker_bytes else self.payload


def _sticky_key(metadata: pb.MessageMetadata) -> bytes:
    return key_in(metadata) or f"{metadata.producer_name}-{metadata.sequence_id}".encode()


def key_in(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    """Return the key that Key_Shared dispatches by: the ordering key, else the key, else None."""
    if ordering_key := metadata.ordering_key:
        return ordering_key
    if not (partition_key := metadata.partition_key):
        return None
    # protobuf returns a text that is not UTF-8 as bytes
    key = partition_key.encode() if type(partition_key) is str else bytes(partition_key)  # type: ignore[arg-type]
    if not metadata.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key  # not base64, but still the same bytes for the same key


class Publication(Protocol):
    """The publisher of one entry. A ledger reports outcomes in publish order, one for each entry."""

    __slots__ = ()

    def confirmed(self, position: Position) -> None:
        """Report that the entry is durable at ``position``."""

    def failed(self, error: HeliographError) -> None:
        """Report that the outcome of the entry is unknown: the publisher sends it again or abandons it."""

    def delayed(self, error: HeliographError) -> None:
        """Report why the outcome of the entry is not known yet. ``confirmed`` or ``failed`` follows in any case."""


# An entry that is not confirmed yet, and when it came, in seconds of ``perf_counter``. It is a plain tuple, because one
# is made for each message.
PendingPublish = tuple[TopicEntry, Publication, float]
NOTHING_PENDING: deque[PendingPublish] = deque(maxlen=0)  # holds nothing ever: an idle topic has no deque of its own
