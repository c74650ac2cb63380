"""The format of an entry, which the broker stores unchanged (docs/formats-pulsar.md).

    u16 magic 0x0e01 | u32 CRC32C of the rest | u32 length of the metadata | MessageMetadata | payload

Magic and checksum may be absent on input. The payload of an entry whose metadata has ``num_messages_in_batch`` (even
of 1) is a batch, which is compressed as one: a run of u32 length | SingleMessageMetadata | message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import crc32c
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from heliograph.base.errors import ChecksumError, ProtocolError, UnsupportedError
from heliograph.protocol.compression import decompress
from heliograph.protocol.pulsar_pb2 import NONE, MessageMetadata, SingleMessageMetadata

ENTRY_MAGIC = 0x0E01
_MAGIC = struct.Struct(">H")
_HEAD = struct.Struct(">HII")
_U32 = struct.Struct(">I")
_COMPRESSION_FIELD = MessageMetadata.COMPRESSION_FIELD_NUMBER
_CHECKED_FROM = 6  # the checksum covers everything from here on

_crc = crc32c.crc32c
# protobuf reads any buffer; its stubs only allow bytes
_parse: Callable[[memoryview], MessageMetadata] = MessageMetadata.FromString  # type: ignore[assignment]


def encode_entry(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Return the entry of a ``payload`` that is already batched and compressed."""
    packed = metadata.SerializeToString()
    length = _U32.pack(len(packed))
    checksum = _crc(payload, _crc(packed, _crc(length)))
    return b"".join((_HEAD.pack(ENTRY_MAGIC, checksum, len(packed)), packed, payload))


def has_checksum(section: bytes | memoryview) -> bool:
    """Return whether the section starts with magic and checksum."""
    return len(section) >= 2 and _MAGIC.unpack_from(section)[0] == ENTRY_MAGIC


def verify(section: bytes | memoryview) -> None:
    """Compare an entry with its checksum. An entry without a checksum passes.

    Raises:
        ChecksumError: the bytes are damaged.
        ProtocolError: the entry is cut short.
    """
    if not has_checksum(section):
        return
    if len(section) < _HEAD.size:
        raise ProtocolError("an entry is cut short", field="entry")
    (expected,) = _U32.unpack_from(section, 2)
    if _crc(memoryview(section)[_CHECKED_FROM:]) != expected:
        raise ChecksumError("an entry does not match its checksum")


def metadata_of(section: bytes | memoryview) -> MessageMetadata:
    """Return the metadata of an entry, without checking its checksum.

    Raises:
        ProtocolError: the bytes are not an entry.
    """
    return split(section)[0]


def split(section: bytes | memoryview) -> tuple[MessageMetadata, memoryview]:
    """Return the metadata and the stored payload of an entry, without checking its checksum.

    Raises:
        ProtocolError: the bytes are not an entry.
    """
    view = memoryview(section)
    start = _CHECKED_FROM if has_checksum(view) else 0
    if len(view) < start + 4:
        raise ProtocolError("an entry is cut short", field="entry")
    (length,) = _U32.unpack_from(view, start)
    start += 4
    if start + length > len(view):
        raise ProtocolError(f"metadata of {length} bytes does not fit its entry", field="entry")
    try:
        return _parse(view[start : start + length]), view[start + length :]
    except DecodeError as error:
        raise ProtocolError(f"the metadata of an entry cannot be read: {error}", field="entry") from error


def message_count(metadata: MessageMetadata) -> int:
    """Return the number of messages in an entry, at least 1."""
    return max(1, metadata.num_messages_in_batch)


def is_batch(metadata: MessageMetadata) -> bool:
    """Return whether the payload is a batch. An encrypted payload is opaque, so it counts as one message."""
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def is_compressed(metadata: MessageMetadata) -> bool:
    """Return whether the payload is compressed, with a codec that is known here."""
    return metadata.compression != NONE


def plain_payload(metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
    """Return the decompressed payload. An encrypted payload is returned unchanged.

    Raises:
        UnsupportedError: the codec is not known, or the payload is too large.
        ChecksumError: the payload cannot be decompressed.
    """
    if metadata.encryption_keys:
        return bytes(payload)
    if not metadata.HasField("compression"):
        for field in iter(UnknownFieldSet(metadata)):  # there protobuf keeps the number of a codec unknown to it
            if field.field_number == _COMPRESSION_FIELD:
                raise UnsupportedError(f"an entry has the unknown compression codec {field.data}", field="compression")
    return decompress(metadata.compression, payload, metadata.uncompressed_size)


def iterate_batch(metadata: MessageMetadata, plain: bytes) -> Iterator[tuple[SingleMessageMetadata, bytes]]:
    """Yield the messages of a batch in order. ``plain`` comes from ``plain_payload``.

    Messages in a row with equal metadata share one object, which must not be changed.

    Raises:
        ProtocolError: the batch does not match its metadata.
    """
    position, packed, single = 0, b"", SingleMessageMetadata()
    for _ in range(metadata.num_messages_in_batch):
        try:
            start = position + 4
            (length,) = _U32.unpack_from(plain, position)
            position = start + length
            if plain[start:position] != packed:
                packed = plain[start:position]
                single = SingleMessageMetadata.FromString(packed)
        except (struct.error, DecodeError) as error:
            raise ProtocolError(f"a batch cannot be read: {error}", field="entry") from error
        end = position + single.payload_size
        if not position <= end <= len(plain):
            raise ProtocolError("a message of a batch does not fit its entry", field="entry")
        yield single, plain[position:end]
        position = end
