"""Builds entries out of payloads, batch first: a list of payloads becomes one entry without an object per message.

The metadata of each message is packed by hand (tests compare it with protobuf's own packing): at a million messages
a second, building and serializing a protobuf object for each would cost more than everything else together.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import chain

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import compress
from heliograph.protocol.entry import encode_entry

_PROPERTIES, _KEY, _PAYLOAD_SIZE, _EVENT_TIME = b"\x0a", b"\x12", b"\x18", b"\x28"  # tags of SingleMessageMetadata
BATCH_HEAD_BYTES_MAX = 64  # in front of a message without key and properties, generously


def varint(value: int) -> bytes:
    """A non-negative number in protobuf's variable length form."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


@functools.lru_cache(maxsize=65_536)
def plain_head(size: int) -> bytes:
    """What stands in a batch in front of a message of ``size`` bytes that has neither key nor properties."""
    single = _PAYLOAD_SIZE + varint(size)
    return len(single).to_bytes(4, "big") + single


@functools.lru_cache(maxsize=65_536)
def keyed_head(key: str, size: int) -> bytes:
    """What stands in a batch in front of a message of ``size`` bytes that has a key and no properties."""
    packed = key.encode()
    single = b"".join((_KEY, varint(len(packed)), packed, _PAYLOAD_SIZE, varint(size)))
    return len(single).to_bytes(4, "big") + single


def full_head(size: int, key: str | None, properties: Mapping[str, str] | None, event_time_ms: int | None) -> bytes:
    """What stands in a batch in front of any message of ``size`` bytes."""
    parts = []
    for name, value in (properties or {}).items():
        pair = _text(b"\x0a", name) + _text(b"\x12", value)
        parts += [_PROPERTIES, varint(len(pair)), pair]
    if key is not None:
        parts.append(_text(_KEY, key))
    parts += [_PAYLOAD_SIZE, varint(size)]
    if event_time_ms is not None:
        parts += [_EVENT_TIME, varint(event_time_ms)]
    single = b"".join(parts)
    return len(single).to_bytes(4, "big") + single


def _text(tag: bytes, text: str) -> bytes:
    packed = text.encode()
    return tag + varint(len(packed)) + packed


def heads_of(payloads: Sequence[bytes], keys: Sequence[str | None] | None) -> list[bytes]:
    """The heads of many payloads, with a key each where ``keys`` is given."""
    if keys is None:
        return list(map(plain_head, map(len, payloads)))
    return [
        plain_head(len(payload)) if key is None else keyed_head(key, len(payload))
        for payload, key in zip(payloads, keys, strict=True)
    ]


def encode_batch(
    metadata: pb.MessageMetadata, heads: Sequence[bytes], payloads: Sequence[bytes], codec: pb.CompressionType = pb.NONE
) -> bytes:
    """One entry that holds ``payloads``, each behind its head.

    Args:
        metadata: has producer, sequence id and publish time set; count, sizes and codec are filled in here.
        heads: from ``heads_of``, ``plain_head``, ``keyed_head`` or ``full_head``.
        payloads: at least one.
        codec: compresses the batch as a whole.

    Raises:
        UnsupportedError: the codec's library is not installed.
    """
    assert payloads, "an entry holds at least one message"
    plain = b"".join(chain.from_iterable(zip(heads, payloads, strict=True)))
    metadata.num_messages_in_batch = len(payloads)
    return _encode(metadata, plain, codec)


def encode_single(
    metadata: pb.MessageMetadata, head: bytes, payload: bytes, codec: pb.CompressionType = pb.NONE
) -> bytes:
    """One entry that is a single message and no batch: what its head says moves into the entry's metadata.

    Raises:
        UnsupportedError: the codec's library is not installed.
    """
    single = pb.SingleMessageMetadata.FromString(head[4:])
    if single.HasField("partition_key"):
        metadata.partition_key = single.partition_key
    if single.HasField("event_time"):
        metadata.event_time = single.event_time
    metadata.properties.extend(single.properties)
    return _encode(metadata, payload, codec)


def _encode(metadata: pb.MessageMetadata, plain: bytes, codec: pb.CompressionType) -> bytes:
    metadata.uncompressed_size = len(plain)
    if codec != pb.NONE:
        metadata.compression = codec
        plain = compress(codec, plain)
    return encode_entry(metadata, plain)


def encode_entry_of(
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    payloads: Sequence[bytes],
    keys: Sequence[str | None] | None = None,
) -> bytes:
    """One batch entry out of a list of payloads: the whole way in one call, for brokers that publish by themselves."""
    metadata = pb.MessageMetadata(producer_name=producer_name, sequence_id=sequence_id, publish_time=publish_time_ms)
    metadata.highest_sequence_id = sequence_id + len(payloads) - 1
    return encode_batch(metadata, heads_of(payloads, keys), payloads)
