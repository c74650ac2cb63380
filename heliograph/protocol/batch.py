"""Entries built from payloads: a list of payloads becomes one entry without a Python object for each message.

The metadata of each message is encoded here and not by protobuf (tests compare the two): at a million messages a
second, a protobuf object for each message would cost more than everything else together.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from itertools import chain

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import UNCOMPRESSED_BYTES_MAX, compress
from heliograph.protocol.entry import encode_entry

_PROPERTIES, _KEY, _PAYLOAD_SIZE, _EVENT_TIME = b"\x0a", b"\x12", b"\x18", b"\x28"  # tags of SingleMessageMetadata
_KEY_IS_BASE64, _ORDERING_KEY, _NULL_VALUE = b"\x30\x01", b"\x3a", b"\x48\x01"  # the tag of a flag with its value, true
STOPS_AT_REFUSAL = "heliograph.stops-at-refusal"  # property of a producer that wants nothing stored after a refusal
# A broker that deduplicates remembers what the names a/b/c begin with that it forgets, here a/b/. A producer that is
# named by that, one of these and anything else gets as its last sequence id the highest one of the forgotten names, or
# when the last of them was active, in milliseconds since 1970; -1 if none was forgotten.
FORGOTTEN_LAST, FORGOTTEN_TIME = "@last.", "@time."
TAKES_PARTS = "heliograph.takes-parts"  # property of a consumer that acknowledges each message of a batch: "true"
LARGE_MESSAGE_BYTES_MAX = UNCOMPRESSED_BYTES_MAX  # of a message in chunks, which consumers hold as a whole  # I15


def varint(value: int) -> bytes:
    """Encode a non-negative number in protobuf's variable-length form."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


@functools.lru_cache(maxsize=65_536)
def plain_head(size: int) -> bytes:
    """Return the batch header of a message of ``size`` bytes that has neither key nor properties."""
    single = _PAYLOAD_SIZE + varint(size)
    return len(single).to_bytes(4, "big") + single


@functools.lru_cache(maxsize=65_536)
def keyed_head(key: str, size: int) -> bytes:
    """Return the batch header of a message of ``size`` bytes that has a key and no properties."""
    packed = key.encode()
    single = b"".join((_KEY, varint(len(packed)), packed, _PAYLOAD_SIZE, varint(size)))
    return len(single).to_bytes(4, "big") + single


def full_head(
    size: int,
    key: str | bytes | None,
    properties: Mapping[str, str] | None,
    event_time_ms: int | None,
    ordering_key: bytes | None = None,
    is_null: bool = False,
) -> bytes:
    """Return the batch header of any message of ``size`` bytes.

    Args:
        key: text, or bytes, which are stored as base64 text with a flag.
        is_null: the message has no value, and ``size`` is 0.
    """
    parts = []
    for name, value in (properties or {}).items():
        pair = _text(b"\x0a", name) + _text(b"\x12", value)
        parts += [_PROPERTIES, varint(len(pair)), pair]
    if key is not None:
        parts.append(_text(_KEY, key_text(key)))
    parts += [_PAYLOAD_SIZE, varint(size)]
    if event_time_ms is not None:
        parts += [_EVENT_TIME, varint(event_time_ms)]
    if isinstance(key, bytes):
        parts.append(_KEY_IS_BASE64)
    if ordering_key is not None:
        parts += [_ORDERING_KEY, varint(len(ordering_key)), ordering_key]
    if is_null:
        parts.append(_NULL_VALUE)
    single = b"".join(parts)
    return len(single).to_bytes(4, "big") + single


def key_text(key: str | bytes) -> str:
    """Return a key as it stands in a message's metadata, and as it is hashed to choose a partition."""
    return base64.b64encode(key).decode() if isinstance(key, bytes) else key


def _text(tag: bytes, text: str) -> bytes:
    packed = text.encode()
    return tag + varint(len(packed)) + packed


def heads_of(payloads: Sequence[bytes], keys: Sequence[str | None] | None) -> list[bytes]:
    """Return the batch headers of many payloads; with ``keys``, each payload may have a key."""
    if keys is None:
        return list(map(plain_head, map(len, payloads)))
    return [
        plain_head(len(payload)) if key is None else keyed_head(key, len(payload))
        for payload, key in zip(payloads, keys, strict=True)
    ]


def encode_batch(
    metadata: pb.MessageMetadata, heads: Sequence[bytes], payloads: Sequence[bytes], codec: pb.CompressionType = pb.NONE
) -> bytes:
    """Return one entry that holds ``payloads``, each after its header.

    Args:
        metadata: has producer, sequence id and publish time set; count, sizes and codec are set here.
        heads: from ``heads_of``, ``plain_head``, ``keyed_head`` or ``full_head``.
        payloads: at least one.
        codec: of the compression of the batch; not used where it would make the batch larger.

    Raises:
        UnsupportedError: there is no such codec.
    """
    assert payloads, "an entry holds at least one message"
    plain = b"".join(chain.from_iterable(zip(heads, payloads, strict=True)))
    metadata.num_messages_in_batch = len(payloads)
    return _encode(metadata, plain, codec)


def encode_single(
    metadata: pb.MessageMetadata, head: bytes, payload: bytes, codec: pb.CompressionType = pb.NONE
) -> bytes:
    """Return one entry that is a single message and no batch. The fields of its header move into the entry's metadata.

    Raises:
        UnsupportedError: there is no such codec.
    """
    _move_head(metadata, head)
    return _encode(metadata, payload, codec)


def encode_chunks(
    metadata: pb.MessageMetadata, head: bytes, payload: bytes, codec: pb.CompressionType, bytes_max: int
) -> list[bytes]:
    """Return the entries of a single message: one if its payload, compressed, has at most ``bytes_max``, else chunks.

    Raises:
        UnsupportedError: there is no such codec.
    """
    _move_head(metadata, head)
    packed = _packed(metadata, payload, codec)
    chunks = -(-len(packed) // bytes_max)
    if chunks <= 1:
        return [encode_entry(metadata, packed)]
    metadata.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = chunks, len(packed)
    entries = []
    for number in range(chunks):
        metadata.chunk_id = number
        entries.append(encode_entry(metadata, packed[number * bytes_max : (number + 1) * bytes_max]))
    return entries


def _move_head(metadata: pb.MessageMetadata, head: bytes) -> None:
    single = pb.SingleMessageMetadata.FromString(head[4:])
    if single.HasField("partition_key"):
        metadata.partition_key = single.partition_key
    if single.partition_key_b64_encoded:
        metadata.partition_key_b64_encoded = True
    if single.HasField("ordering_key"):
        metadata.ordering_key = single.ordering_key
    if single.null_value:
        metadata.null_value = True
    if single.HasField("event_time"):
        metadata.event_time = single.event_time
    metadata.properties.extend(single.properties)


def _encode(metadata: pb.MessageMetadata, plain: bytes, codec: pb.CompressionType) -> bytes:
    return encode_entry(metadata, _packed(metadata, plain, codec))


def _packed(metadata: pb.MessageMetadata, plain: bytes, codec: pb.CompressionType) -> bytes:
    metadata.uncompressed_size = len(plain)
    if codec != pb.NONE:
        packed = compress(codec, plain)
        if len(packed) < len(plain):  # otherwise a message of the largest size might not fit the broker's limit
            metadata.compression = codec
            return packed
    return plain


def encode_entry_of(
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    payloads: Sequence[bytes],
    keys: Sequence[str | None] | None = None,
) -> bytes:
    """Return one uncompressed batch entry for a list of payloads, for brokers that publish by themselves."""
    metadata = pb.MessageMetadata(producer_name=producer_name, sequence_id=sequence_id, publish_time=publish_time_ms)
    metadata.highest_sequence_id = sequence_id + len(payloads) - 1
    return encode_batch(metadata, heads_of(payloads, keys), payloads)
