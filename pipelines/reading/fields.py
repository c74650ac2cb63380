"""Fields of a message's metadata as they stand in a table.

Protobuf hands out texts that are not UTF-8 as bytes, and any producer may send such.
"""

from __future__ import annotations

import base64
import contextlib

from heliograph.protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

_Metadata = MessageMetadata | SingleMessageMetadata


def key_of(metadata: _Metadata) -> bytes | None:
    """Return the key, decoded where the producer says that it is base64 text; None if there is none."""
    if not metadata.HasField("partition_key"):
        return None
    if metadata.partition_key_b64_encoded:
        with contextlib.suppress(ValueError):  # a producer may say so of any text
            return base64.b64decode(metadata.partition_key, validate=True)
    key: str | bytes = metadata.partition_key
    return key if isinstance(key, bytes) else key.encode()


def ordering_key_of(metadata: _Metadata) -> bytes | None:
    """Return the ordering key, None if there is none."""
    return metadata.ordering_key if metadata.HasField("ordering_key") else None


def properties_of(metadata: _Metadata) -> list[tuple[str, str]]:
    """Return the properties. A map has a key once: the last one wins."""
    if not metadata.properties:
        return []
    return list({text(pair.key): text(pair.value) for pair in metadata.properties}.items())


def text(field: str | bytes) -> str:
    """Return a text as a column can hold it: bytes that are not UTF-8 are replaced by marks."""
    return field.decode(errors="replace") if isinstance(field, bytes) else field
