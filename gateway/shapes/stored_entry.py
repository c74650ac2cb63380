"""Pulsar's answer for a stored entry: the payload in the body, its metadata in headers.

The clients in Java and Go take a batch apart by themselves: with ``X-Pulsar-num-batch-message`` the body has to be the
whole batch, decompressed. An encrypted payload is as it was stored, and ``X-Pulsar-Is-Encrypted`` says so.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from heliograph.base.clock import iso_time
from heliograph.protocol import pulsar_pb2 as pb

HEADER_PROPERTIES_MAX = 100  # of an entry shown as headers
HEADERS_BYTES_MAX = 32 << 10  # of the values of all headers: clients fail on some 64 KiB of them  # I15
LEFT_OUT = "Left-Out"  # names the headers that did not fit, which a peek at single messages shows
_FIELDS = {
    "producer_name": "producer-name",
    "sequence_id": "sequence-id",
    "highest_sequence_id": "highest-sequence-id",
    "partition_key": "partition-key",
    "replicated_from": "replicated-from",
    "uncompressed_size": "uncompressed-size",
    "encryption_algo": "encryption-algo",
    "marker_type": "marker-type",
    "uuid": "uuid",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id",
    "num_messages_in_batch": "num-batch-message",
}
_TIMES = {"publish_time": "publish-time", "event_time": "event-time", "deliver_at_time": "deliver-at-time"}
_FLAGS = {
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "null_partition_key": "null-partition-key",
    "null_value": "null-value",
}
_BYTES = {
    "ordering_key": "Base64-ordering-key",
    "schema_version": "Base64-schema-version-b64encoded",
    "encryption_param": "Base64-encryption-param",
}


def entry_response(found: Mapping[str, Any]) -> Response:
    """Return the answer for a whole entry, in the form of ``peek`` with ``as_entry`` in ``heliograph/operations``."""
    metadata = pb.MessageMetadata.FromString(found["metadata"])
    noted = pb.BrokerEntryMetadata.FromString(found.get("broker_metadata", b""))  # brokers of older versions send none
    headers = {"Message-ID": ":".join(found["message_id"].split(":")[:2])}
    headers |= {
        header: _ascii(str(getattr(metadata, name))) for name, header in _FIELDS.items() if _has(metadata, name)
    }
    headers |= {header: iso_time(getattr(metadata, name)) for name, header in _TIMES.items() if getattr(metadata, name)}
    headers |= {header: "true" for name, header in _FLAGS.items() if getattr(metadata, name)}
    headers |= {header: _base64(getattr(metadata, name)) for name, header in _BYTES.items() if _has(metadata, name)}
    if metadata.HasField("num_messages_in_batch"):
        headers["batch-size"] = str(len(found["payload"]))
    if metadata.compression != pb.NONE:
        known = metadata.compression in pb.CompressionType.values()
        headers["compression"] = pb.CompressionType.Name(metadata.compression) if known else str(metadata.compression)
    if noted.HasField("broker_timestamp"):
        headers["Broker-Entry-METADATA-timestamp"] = iso_time(noted.broker_timestamp)
    if noted.HasField("index"):
        headers["Broker-Entry-METADATA-index"] = str(noted.index)
    pairs = {pair.key: pair.value for pair in metadata.properties}
    if pairs:
        headers["PROPERTY"] = json.dumps(dict(list(pairs.items())[:HEADER_PROPERTIES_MAX]))
    if metadata.encryption_keys:
        headers["Is-Encrypted"] = "true"
    keys = [("Base64-encryption-keys", _base64(key.SerializeToString())) for key in metadata.encryption_keys]
    response = Response(found["payload"], media_type="application/octet-stream")
    for name, value in _fitting([*headers.items(), *keys]):
        response.headers.append(f"X-Pulsar-{name}", value)
    return response


def _fitting(headers: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the headers that fit together if the small ones are taken first, and one with the names of the others."""
    room, left_out = HEADERS_BYTES_MAX, dict[int, str]()
    for index in sorted(range(len(headers)), key=lambda index: len(headers[index][1])):
        name, value = headers[index]
        room -= len(name) + len(value)
        if room < 0:
            left_out[index] = name
    yield from (header for index, header in enumerate(headers) if index not in left_out)
    if left_out:
        yield LEFT_OUT, ", ".join(dict.fromkeys(left_out.values()))


def _has(metadata: pb.MessageMetadata, name: str) -> bool:
    return metadata.HasField(name)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _ascii(text: str) -> str:
    """Return text that a header can carry: characters other than printable ASCII are escaped."""
    return text.encode("unicode_escape").decode("ascii")
