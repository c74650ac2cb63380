"""The codec between records of ``metadata/model.py`` and the bytes of a node.

The first line is text: the kind, the format version and the CRC32C of the rest. The rest is compact JSON. Any tool that
shows the store's values can show both. docs/formats.md describes the bytes.

Every written record passes through here, so the size limit of each kind is checked here too (I23). A record above half
of it raises an alarm: one log line, and ``large_records`` lists it for ``helio status`` and the metrics.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import crc32c
from pydantic import TypeAdapter, ValidationError

from heliograph.metadata.chain_records import ChainPiece
from heliograph.metadata.errors import RecordError, RecordTooLargeError
from heliograph.metadata.model import TopicRecord

R = TypeVar("R")

FORMAT_VERSION = 1
PIECES_VERSION = 2  # of a TopicRecord with pieces: earlier releases refuse it, where they would take it for the whole
# A node takes 1 MiB, and so does a request by ZooKeeper's defaults, with the path and what else one write changes.
RECORD_BYTES_MAX = 960 << 10
# Kinds that are written together with others in one request. I15, I23
KIND_BYTES_MAX: dict[type[Any], int] = {TopicRecord: 512 << 10, ChainPiece: 96 << 10}
LARGE_RECORDS_MAX = 100  # records named by ``large_records``  # I15
_MAGIC = b"heliograph"

log = logging.getLogger(__name__)

_large: dict[str, str] = {}  # what this process wrote above half of its limit, by path

_adapters: dict[type[Any], TypeAdapter[Any]] = {}  # one for each class of metadata/model.py, built at first use


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    adapter = _adapters.get(kind)
    if adapter is None:
        adapter = _adapters[kind] = TypeAdapter(kind)
    return adapter


def encode(record: Any, path: str = "", *, has_limit: bool = True) -> bytes:
    """Return the bytes of a record, for a node's value.

    Args:
        path: of the node, for the error and the alarm.
        has_limit: False for a record that is already stored.

    Raises:
        RecordTooLargeError: it is above the limit of its kind.
    """
    kind = type(record)
    body = _adapter(kind).dump_json(record)
    head = b"%s %s v%d %08x\n" % (_MAGIC, kind.__name__.encode(), _version_of(record), crc32c.crc32c(body))
    _check_size(kind, path, len(head) + len(body), has_limit)
    return head + body


def bytes_max(kind: type[Any]) -> int:
    """Return the size limit of a kind of record, in bytes."""
    return KIND_BYTES_MAX.get(kind, RECORD_BYTES_MAX)


def is_without_pieces(value: bytes) -> bool:
    """Return whether a value is the record of a topic without pieces. The value is not parsed."""
    return value.startswith(b"%s %s v%d " % (_MAGIC, TopicRecord.__name__.encode(), FORMAT_VERSION))


def large_records() -> list[str]:
    """Return a text for each record whose latest version written by this process is above half of its limit."""
    return list(_large.values())


def _version_of(record: Any) -> int:
    return PIECES_VERSION if isinstance(record, TopicRecord) and record.pieces else FORMAT_VERSION


def _check_size(kind: type[Any], path: str, size: int, has_limit: bool) -> None:
    limit, name = bytes_max(kind), path or f"a {kind.__name__}"
    if size > limit and has_limit:
        raise RecordTooLargeError(
            f"{name} would have {size} bytes: a {kind.__name__} may have {limit}", field=name, limit=f"{limit} bytes"
        )
    if 2 * size <= limit:
        if _large:
            _large.pop(name, None)
        return
    if name not in _large:
        log.warning("%s has %d bytes, more than half of the limit of a %s (%d)", name, size, kind.__name__, limit)
    if name in _large or len(_large) < LARGE_RECORDS_MAX:
        _large[name] = f"{name} has {size} of at most {limit} bytes"


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
    newest = PIECES_VERSION if kind is TopicRecord else FORMAT_VERSION
    if parts[2] not in [b"v%d" % version for version in range(FORMAT_VERSION, newest + 1)]:
        raise RecordError(
            f"{kind.__name__} record has format {parts[2].decode(errors='replace')}, this program reads "
            f"v{newest}: upgrade it"
        )
    if parts[3] != b"%08x" % crc32c.crc32c(body):
        raise RecordError(f"{kind.__name__} record fails its checksum")
    try:
        record: R = _adapter(kind).validate_json(body)
    except ValidationError as error:
        raise RecordError(f"malformed {kind.__name__} record: {error}") from error
    return record
