"""The codec between records of ``metadata/model.py`` and the bytes of a node.

The first line is text: the kind, the format version and the CRC32C of the rest. The rest is compact JSON. Any tool
that shows the store's values can read both. docs/formats.md describes the bytes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import crc32c
from pydantic import TypeAdapter, ValidationError

from heliograph.metadata.errors import RecordError

R = TypeVar("R")

FORMAT_VERSION = 1
_MAGIC = b"heliograph"


_adapters: dict[type[Any], TypeAdapter[Any]] = {}  # one for each class of metadata/model.py, built at first use


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    adapter = _adapters.get(kind)
    if adapter is None:
        adapter = _adapters[kind] = TypeAdapter(kind)
    return adapter


def encode(record: Any) -> bytes:
    """Return the bytes of a record, for a node's value."""
    body = _adapter(type(record)).dump_json(record)
    head = b"%s %s v%d %08x\n" % (_MAGIC, type(record).__name__.encode(), FORMAT_VERSION, crc32c.crc32c(body))
    return head + body


def decode(kind: type[R], value: bytes | None) -> R:
    """Return the record in a node's value.

    Raises:
        RecordError: the value is damaged, of another kind, or written by a newer version.
    """
    if value is None:
        raise RecordError(f"not a {kind.__name__} record: null")
    head, _, body = value.partition(b"\n")
    parts = head.split(b" ")
    if len(parts) != 4 or parts[0] != _MAGIC or not parts[2].startswith(b"v"):
        raise RecordError(f"not a {kind.__name__} record: {value[:64]!r}")
    if parts[1] != kind.__name__.encode():
        raise RecordError(f"expected a {kind.__name__} record, found {parts[1].decode(errors='replace')}")
    if parts[2] != b"v%d" % FORMAT_VERSION:
        raise RecordError(
            f"{kind.__name__} record has format {parts[2].decode(errors='replace')}, this program reads "
            f"v{FORMAT_VERSION}: upgrade it"
        )
    if parts[3] != b"%08x" % crc32c.crc32c(body):
        raise RecordError(f"{kind.__name__} record fails its checksum")
    try:
        record: R = _adapter(kind).validate_json(body)
    except ValidationError as error:
        raise RecordError(f"malformed {kind.__name__} record: {error}") from error
    return record
