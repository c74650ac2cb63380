"""The keys of the messages of a batch, which Key_Shared subscriptions divide it by.

They are read from the batch once and noted with the entry. The messages themselves are not copied.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from heliograph.actors.broker.records.topic_entry import TopicEntry, key_in
from heliograph.base.errors import HeliographError
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import INLINE_BYTES_MAX
from heliograph.protocol.hashing import sticky_key_hash

# Of a batch that is divided by keys, on the event loop. If each message has its own key, the bits that note where
# they wait take the square of it.
KEYED_MESSAGES_MAX = 4_000  # I15, I24
UNKNOWN: Sequence[int] = ()  # the messages of an entry cannot be told apart

_U32 = struct.Struct(">I")


def needs_thread(entry: TopicEntry) -> bool:
    """Return whether ``read_key_hashes`` would hold an event loop for too long."""
    if entry.messages > KEYED_MESSAGES_MAX:
        return False
    metadata = codec.metadata_of(entry.payload)
    size = max(metadata.uncompressed_size, len(entry.payload))
    return codec.is_compressed(metadata) and size > INLINE_BYTES_MAX


def read_key_hashes(entry: TopicEntry) -> Sequence[int]:
    """Return the hash of each message's key, and note in ``entry.ends`` where each message ends.

    A message without a key counts as one with that of its batch.

    Returns:
        ``UNKNOWN`` for an entry that is no batch, or whose messages cannot be read: it is encrypted or damaged, has
        another number of messages than it says, or more than ``KEYED_MESSAGES_MAX``.
    """
    if not entry.is_batch or entry.chunk_uuid is not None or entry.messages > KEYED_MESSAGES_MAX:
        return UNKNOWN
    try:
        metadata, payload = codec.split(entry.payload)
        if metadata.encryption_keys:
            return UNKNOWN
        return _hashes_in(codec.plain_view(metadata, payload), entry, sticky_key_hash(entry.sticky_key))
    except (HeliographError, DecodeError, struct.error):
        return UNKNOWN


def _hashes_in(plain: bytes | memoryview, entry: TopicEntry, without_key: int) -> Sequence[int]:
    parse, hash_of, length_at = pb.SingleMessageMetadata.FromString, sticky_key_hash, _U32.unpack_from
    messages, at, total = entry.messages, 0, len(plain)
    hashes, ends = array("H", bytes(2 * messages)), array("I", bytes(4 * messages))
    for place in range(messages):
        (length,) = length_at(plain, at)
        at += 4
        single = parse(plain[at : at + length])  # type: ignore[arg-type]  # protobuf reads any buffer
        size = single.payload_size
        at += length + size
        if size < 0 or at > total:
            return UNKNOWN
        ends[place] = at
        key = key_in(single)
        hashes[place] = without_key if key is None else hash_of(key)
    if at != total:
        return UNKNOWN
    entry.ends = ends
    return hashes
