"""An entry of a topic as the broker handles it: the producer's bytes, verbatim, and the few facts dispatch needs."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One entry. ``messages`` is what it costs in permits; a chunk carries the uuid that its sisters share."""

    payload: bytes
    messages: int
    is_batch: bool
    is_marker: bool
    chunk_uuid: str | None
    is_last_chunk: bool
    publish_time_ms: int
    sticky_key: bytes  # what Key_Shared keeps together: ordering key, key, or something unique
    deliver_at_ms: int = 0  # not before, on shared subscriptions; 0: at once
    live: int | None = None  # of a batch that was compacted: the messages that are left, a bit each

    @property
    def last_place(self) -> int:
        """The place of the last message in its batch."""
        return self.messages - 1 if self.live is None else self.live.bit_length() - 1

    @staticmethod
    def read(section: bytes | memoryview, *, check: bool) -> TopicEntry:
        """Take an entry from the wire or from a ledger.

        Args:
            check: compare it with its checksum first.

        Raises:
            ChecksumError: the bytes were damaged.
            ProtocolError: these bytes are no entry.
        """
        if check:
            codec.verify(section)
        metadata = codec.metadata_of(section)
        return TopicEntry(
            bytes(section),
            codec.message_count(metadata),
            metadata.HasField("num_messages_in_batch"),
            metadata.HasField("marker_type"),
            metadata.uuid if metadata.num_chunks_from_msg > 1 else None,
            metadata.chunk_id == metadata.num_chunks_from_msg - 1,
            metadata.publish_time,
            _sticky_key(metadata),
            metadata.deliver_at_time,
        )


def _sticky_key(metadata: pb.MessageMetadata) -> bytes:
    if metadata.ordering_key:
        return metadata.ordering_key
    if not metadata.partition_key:
        return f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    key = metadata.partition_key.encode()
    if not metadata.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key  # whatever it is, it is the same for the same key
