"""The commands that a producer sends. Pure."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import crc32c

from heliograph.client.options import ProducerOptions
from heliograph.client.types import AccessMode
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import STOPS_AT_REFUSAL, encode_batch, encode_chunks, encode_single, varint
from heliograph.protocol.entry import ENTRY_MAGIC
from heliograph.protocol.frame import MESSAGE_BYTES_MAX, encode_payload_frame
from heliograph.protocol.schema import SchemaInfo, to_wire

_T = pb.BaseCommand
_BEGIN = struct.Struct(">II3sB")  # of a frame: length, length of the command, tags of the command, length of SEND in it
_SEND_TAGS = b"\x08\x06\x32"  # the command's type, which is SEND, and the tag of its field of that name
_CHECKED = struct.Struct(">HI")  # of an entry: magic, checksum of all that follows
_U32 = struct.Struct(">I")
_KEY_TAG = 0x12  # of the key in the header of a message
_PARTITION_KEY = b"\x32"  # tag of the key in the metadata of an entry
_crc = crc32c.crc32c
_ACCESS_MODES: dict[AccessMode, pb.ProducerAccessMode] = {
    "shared": pb.ACCESS_SHARED,
    "exclusive": pb.ACCESS_EXCLUSIVE,
    "wait_for_exclusive": pb.ACCESS_WAIT_FOR_EXCLUSIVE,
    "exclusive_with_fencing": pb.ACCESS_EXCLUSIVE_WITH_FENCING,
}


def register(
    topic: str,
    options: ProducerOptions,
    producer_id: int,
    request_id: int,
    epoch: int,
    name: str,
    topic_epoch: int | None,
    schema: SchemaInfo | None,
) -> pb.BaseCommand:
    """Return PRODUCER. ``name`` is the one that the broker chose before, or the option, or empty."""
    command = pb.CommandProducer(
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        epoch=epoch,
        user_provided_producer_name=options.name is not None,
        producer_access_mode=_ACCESS_MODES[options.access_mode],
    )
    if name:
        command.producer_name = name
    if schema is not None:
        command.schema.CopyFrom(to_wire(schema))
    if options.initial_subscription is not None:
        command.initial_subscription_name = options.initial_subscription
    if options.stop_at_failure:
        command.metadata.add(key=STOPS_AT_REFUSAL, value="true")
    if topic_epoch is not None:
        command.topic_epoch = topic_epoch
    return pb.BaseCommand(type=_T.PRODUCER, producer=command)


def close(producer_id: int, request_id: int) -> pb.BaseCommand:
    command = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.CLOSE_PRODUCER, close_producer=command)


def frames(
    metadata: pb.MessageMetadata,
    send: pb.CommandSend,
    heads: Sequence[bytes],
    payloads: Sequence[bytes],
    codec: pb.CompressionType,
    bytes_max: int = MESSAGE_BYTES_MAX,
) -> tuple[bytes, int]:
    """Return the frames SEND of an entry, one behind the other, and how many they are. Thread-safe.

    It is one, of a batch if there are several payloads, unless a single payload has more than ``bytes_max``, also when
    it is compressed: then it is one for each chunk.
    """
    if len(payloads) > 1:
        entries = [encode_batch(metadata, heads, payloads, codec)]
    elif len(payloads[0]) > bytes_max:
        entries = encode_chunks(metadata, heads[0], payloads[0], codec, bytes_max)
        if len(entries) > 1:
            send.is_chunk = True
    else:
        entries = [encode_single(metadata, heads[0], payloads[0], codec)]
    command = pb.BaseCommand(type=_T.SEND, send=send)
    if len(entries) == 1:
        return encode_payload_frame(command, entries[0]), 1
    return b"".join(encode_payload_frame(command, entry) for entry in entries), len(entries)


class PlainFrames:
    """Makes the frames SEND of messages that have a payload and perhaps a key: no properties, no times, no compression.

    Such a frame is put together from bytes: the objects of protobuf would take most of the time of a small message
    (a test compares the two).

    Args:
        producer_id, producer_name: As the broker knows the producer.
        schema_version: Of its schema; empty without one.
    """

    __slots__ = ("_metadata", "_send")

    def __init__(self, producer_id: int, producer_name: str, schema_version: bytes) -> None:
        name = producer_name.encode()
        schema = b"\x82\x01" + varint(len(schema_version)) + schema_version if schema_version else b""
        # Both end with the tag of the sequence id. The order of fields is free.
        self._metadata = b"".join((schema, b"\x0a", varint(len(name)), name, b"\x10"))
        self._send = b"\x18\x01\x08" + varint(producer_id) + b"\x10"

    def frame(self, sequence_id: int, publish_time_ms: int, payload: bytes, key_field: bytes = b"") -> bytes:
        """Return the frame of one message.

        Args:
            key_field: Its key, from ``key_field_of``.
        """
        number = bytes((sequence_id,)) if sequence_id < 0x80 else varint(sequence_id)
        begin, send = self._metadata, self._send
        time, size = _publish_time(publish_time_ms), _uncompressed_size(len(payload))
        metadata_size = len(begin) + len(number) + len(time) + len(key_field) + len(size)
        head = b"".join((_U32.pack(metadata_size), begin, number, time, key_field, size))
        send_size = len(send) + len(number)
        return b"".join(
            (
                _BEGIN.pack(14 + send_size + len(head) + len(payload), 4 + send_size, _SEND_TAGS, send_size),
                send,
                number,
                _CHECKED.pack(ENTRY_MAGIC, _crc(payload, _crc(head))),
                head,
                payload,
            )
        )


def key_field_of(head: bytes, size: int) -> bytes | None:
    """Return the key in a message's header as the metadata of an entry has it: empty without a key.

    Return None for a header that holds more, or a key of more than 127 bytes.

    Args:
        head: From ``heliograph.protocol.batch``.
        size: Bytes of the message's payload.
    """
    size_field = _payload_size(size)
    if not head.endswith(size_field):
        return None
    rest = len(head) - len(size_field)  # before it are the header's own length and the key
    if rest == _U32.size:
        return b""
    if head[4] == _KEY_TAG and head[5] < 0x80 and rest == 6 + head[5]:
        return _PARTITION_KEY + head[5:rest]
    return None


@functools.lru_cache(maxsize=16)  # many messages have the same
def _publish_time(time_ms: int) -> bytes:
    return b"\x18" + varint(time_ms)


@functools.lru_cache(maxsize=4_096)
def _uncompressed_size(size: int) -> bytes:
    return b"\x48" + varint(size)


@functools.lru_cache(maxsize=4_096)
def _payload_size(size: int) -> bytes:
    return b"\x18" + varint(size)
