"""Which messages of a topic are the latest of their key (pure).

Two passes over the same entries: ``observe`` notes the place of the latest message of each key, ``retained`` then
returns what is left of each entry. A message without a value deletes its key; it is kept itself for a time
(``actors/broker/compaction/deletions.py``). Messages without a key are not kept.
A chunked message counts as one, at the place of its last chunk. A batch that cannot be read, because it is encrypted,
compressed with an unknown codec or damaged, is kept as a whole, and takes nothing from the entries before it.
"""

from __future__ import annotations

from heliograph.base.errors import QuotaExceededError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import compress
from heliograph.protocol.entry import (
    batch_messages,
    broker_metadata_size,
    encode_entry,
    is_batch,
    is_compressed,
    split,
)

KEYS_MAX = 2_000_000  # different ones in one topic
KEY_BYTES_MAX = 256 << 20  # of all keys together
_PLACES_MAX = 1 << 20  # messages of one entry, so that a place is one integer

Place = int | str  # index * _PLACES_MAX + batch index, or the uuid of a chunked message


class CompactionPlan:
    """The latest message of each key in the entries observed so far. Entries are named by their index.

    Args:
        deletions_from: the first entry whose messages are kept if they delete a key.
    """

    def __init__(self, deletions_from: int) -> None:
        self._deletions_from = deletions_from
        self._latest: dict[str, Place] = {}
        self._key_bytes = 0

    @property
    def keys(self) -> int:
        return len(self._latest)

    def observe(self, index: int, section: bytes | memoryview) -> None:
        """Note the messages of an entry (first pass); entries come in publish order.

        Raises:
            QuotaExceededError: the topic has too many keys to be compacted.
            ProtocolError: these bytes are not an entry.
        """
        metadata, payload = split(section)
        if metadata.HasField("marker_type"):
            return
        if metadata.HasField("num_messages_in_batch"):
            for place, (single, value) in enumerate(batch_messages(metadata, payload) or ()):
                if single.HasField("partition_key") and not single.compacted_out:
                    is_gone = (single.null_value or not value) and index < self._deletions_from
                    self._note(single.partition_key, index * _PLACES_MAX + place, is_gone)
        elif metadata.HasField("partition_key") and _is_last_chunk(metadata):
            # Compressed or encrypted, nothing takes a few bytes.
            size = metadata.uncompressed_size if is_compressed(metadata) else len(payload)
            is_gone = (metadata.null_value or not size) and index < self._deletions_from
            self._note(metadata.partition_key, _place(metadata, index), is_gone)

    def retained(self, index: int, section: bytes | memoryview) -> bytes | memoryview | None:
        """Return what is left of an entry (second pass): the entry itself, a batch with some messages emptied, or
        None."""
        metadata, payload = split(section)
        if metadata.HasField("marker_type"):
            return None
        if metadata.HasField("num_messages_in_batch"):
            return self._rest_of_batch(index, section, metadata, payload)
        if not metadata.HasField("partition_key"):
            return None
        return section if self._latest.get(metadata.partition_key) == _place(metadata, index) else None

    def _rest_of_batch(
        self, index: int, section: bytes | memoryview, metadata: pb.MessageMetadata, payload: memoryview
    ) -> bytes | memoryview | None:
        left = bytearray()
        kept = 0
        messages = batch_messages(metadata, payload)
        if messages is None:
            return section
        for place, (single, value) in enumerate(messages):
            is_kept = (
                single.HasField("partition_key")
                and self._latest.get(single.partition_key) == index * _PLACES_MAX + place
            )
            kept += is_kept
            packed = single.SerializeToString() if is_kept else _emptied(single)
            left += len(packed).to_bytes(4, "big")
            left += packed
            if is_kept:
                left += value
        if kept == 0:
            return None
        if kept == metadata.num_messages_in_batch:
            return section
        metadata.uncompressed_size = len(left)
        broker_metadata = bytes(section[: broker_metadata_size(section)])  # messages keep their batch indexes
        return broker_metadata + encode_entry(metadata, compress(metadata.compression, left))

    def _note(self, key: str, place: Place, is_gone: bool) -> None:
        assert self._key_bytes >= 0, "a key leaves with the bytes that it came with"
        if is_gone:
            if self._latest.pop(key, None) is not None:
                self._key_bytes -= len(key)
            return
        if key not in self._latest:
            self._key_bytes += len(key)
            if len(self._latest) >= KEYS_MAX or self._key_bytes > KEY_BYTES_MAX:
                raise QuotaExceededError(
                    f"the topic has more than {KEYS_MAX} keys or {KEY_BYTES_MAX} bytes of keys: too many to compact",
                    limit=f"{KEYS_MAX} keys",
                )
        self._latest[key] = place


def live_bits(section: bytes | memoryview) -> int | None:
    """Return the messages that compaction left in a batch, one bit each; None if it left all of them."""
    metadata, payload = split(section)
    messages = batch_messages(metadata, payload) if is_batch(metadata) else None
    if messages is None:
        return None
    count = max(metadata.num_messages_in_batch, 0)
    marks = bytearray(count // 8 + 1)
    for place, (single, _) in enumerate(messages):
        marks[place >> 3] |= (not single.compacted_out) << (place & 7)
    bits = int.from_bytes(marks, "little")
    return None if bits == (1 << count) - 1 else bits


def _is_last_chunk(metadata: pb.MessageMetadata) -> bool:
    return metadata.num_chunks_from_msg <= 1 or metadata.chunk_id == metadata.num_chunks_from_msg - 1


def _place(metadata: pb.MessageMetadata, index: int) -> Place:
    return metadata.uuid if metadata.num_chunks_from_msg > 1 else index * _PLACES_MAX


def _emptied(single: pb.SingleMessageMetadata) -> bytes:
    """Return the metadata of an empty message for its place in a batch, in which the others keep their indexes."""
    empty = pb.SingleMessageMetadata(payload_size=0, compacted_out=True)
    if single.HasField("partition_key"):
        empty.partition_key = single.partition_key
        empty.partition_key_b64_encoded = single.partition_key_b64_encoded
    return empty.SerializeToString()
