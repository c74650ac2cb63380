"""The messages inside a stored entry, as administration shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heliograph.actors.broker.records.position import Position
from heliograph.base.errors import HeliographError
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb

Json = dict[str, Any]


def messages_of(
    position: Position, partition: int, payload: bytes | memoryview, open_bits: int | None = None
) -> Iterator[Json]:
    """Yield every message of an entry, those of a batch one by one.

    Args:
        open_bits: a bit for each message of a batch that is to be shown; None for all.

    Yields:
        ``message_id`` (``ledger:entry:partition[:batch_index]``), ``payload`` (bytes, as the producer gave them, or as
        stored where they are encrypted or cannot be decompressed: then ``is_raw``), ``key``, ``properties``, times in
        ms, ``producer_name``, ``sequence_id``, ``batch_size`` (0: no batch), and ``index`` and
        ``broker_publish_time_ms``, which are None where the broker noted none.
    """
    metadata, body = codec.split(payload)
    noted = codec.broker_metadata_of(payload)
    last = noted.index if noted.HasField("index") else None
    base = f"{position}:{partition}"
    common: Json = {
        "publish_time_ms": metadata.publish_time,
        "deliver_at_ms": metadata.deliver_at_time,
        "producer_name": metadata.producer_name,
        "sequence_id": metadata.sequence_id,
        "is_raw": bool(metadata.encryption_keys),
        "is_marker": metadata.HasField("marker_type"),
        "index": last,
        "broker_publish_time_ms": noted.broker_timestamp if noted.HasField("broker_timestamp") else None,
    }
    try:
        plain = codec.plain_payload(metadata, body)
    except HeliographError:
        plain, common["is_raw"] = bytes(body), True
    if common["is_raw"] or not codec.is_batch(metadata):
        size = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
        yield common | _fields_of(metadata) | {"message_id": base, "payload": plain, "batch_size": size}
        return
    size = metadata.num_messages_in_batch
    # A shift of a long integer for each message would take the square of their number.
    marks = None if open_bits is None else open_bits.to_bytes(max(size, open_bits.bit_length()) // 8 + 1, "little")
    for index, (single, message) in enumerate(codec.iterate_batch(metadata, plain)):
        if marks is None or marks[index >> 3] >> (index & 7) & 1:
            own = _fields_of(single)
            if last is not None:
                own["index"] = last - (size - 1 - index)
            yield common | own | {"message_id": f"{base}:{index}", "payload": message, "batch_size": size}


def entry_of(position: Position, partition: int, payload: bytes | memoryview) -> Json:
    """Return a whole entry: what Pulsar's administrative clients unpack by themselves.

    Returns:
        ``message_id`` (``ledger:entry:partition``), ``payload`` (decompressed, a batch with the headers of its
        messages; as stored where it is encrypted, or a chunk, which cannot be decompressed without the others),
        ``metadata`` (bytes of ``MessageMetadata``), ``broker_metadata`` (bytes of ``BrokerEntryMetadata``).

    Raises:
        UnsupportedError: it is compressed with an unknown codec.
        ChecksumError: it cannot be decompressed.
    """
    metadata, body = codec.split(payload)
    is_chunk = metadata.num_chunks_from_msg > 1
    return {
        "message_id": f"{position}:{partition}",
        "payload": bytes(body) if is_chunk else codec.plain_payload(metadata, body),
        "metadata": metadata.SerializeToString(),
        "broker_metadata": codec.broker_metadata_of(payload).SerializeToString(),
    }


def _fields_of(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> Json:
    return {
        "key": metadata.partition_key if metadata.HasField("partition_key") else None,
        "properties": {pair.key: pair.value for pair in metadata.properties},
        "event_time_ms": metadata.event_time,
    }
