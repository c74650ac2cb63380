"""The values that the etcd backend writes; the byte map is in docs/formats-metadata.md. No I/O.

Every value begins with a CRC32C of its key and of all bytes after the checksum, and the version of its layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgpack

from heliograph.metadata.errors import RecordError
from heliograph.metadata.session.sealing import opened, opened_any, opened_session, sealed, sealed_session
from heliograph.metadata.store import EventType, WatchEvent
from heliograph.metadata.znode import is_kind

RECORD_VERSION = 1
FLAGGED_NODE_VERSION = 2  # a node whose value follows its kind and flags; written only where one of them is set
LAYOUT = b"heliograph metadata in etcd, layout 1"

_NODE = struct.Struct("<4q")  # czxid or 0, version, created ms, modified ms
_EXTENSION = struct.Struct("<qB")  # kind, flags
_IS_NULL = 1  # the flag of a node that has null instead of a value
_FAMILY = struct.Struct("<3q")  # creations, removals, pzxid or 0
_SESSION = struct.Struct("<q")  # number of the latest transaction; owner and password follow

_EVENT_CODES = {EventType.CREATED: 1, EventType.DELETED: 2, EventType.CHANGED: 3}
_EVENT_TYPES = {code: kind for kind, code in _EVENT_CODES.items()}


@dataclass(frozen=True, slots=True)
class NodeHead:
    """The head of a node's value. ``czxid`` 0: the revision that wrote this value also created the node.

    ``kind`` is that of a container or of a node with a time to live (``Create``).
    """

    czxid: int
    version: int
    created_ms: int
    modified_ms: int
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """A node's family: how many children were ever created in it, and how many of them are known to be gone.

    ``pzxid`` 0: the revision that wrote this record was the last to change the list of children.
    """

    creations: int = 0
    removals: int = 0
    pzxid: int = 0


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session's record. ``sequence`` counts its transactions: it shows whether a transaction took effect.

    ``owner`` names the client that last took the session over, "" for the client that began it. Each owner has its own
    sequence.
    """

    sequence: int
    password: str
    owner: str = ""


def encode_layout(key: bytes) -> bytes:
    return sealed(key, LAYOUT, RECORD_VERSION)


def check_layout(key: bytes, stored: bytes) -> None:
    """Check that this version can read the data under a prefix.

    Raises:
        RecordError: another version wrote it, or it is not Heliograph's metadata.
    """
    found = opened(key, stored, RECORD_VERSION, 1)
    if found != LAYOUT:
        raise RecordError(f"{key!r} says {found!r}, this program reads {LAYOUT.decode()}: upgrade it")


def encode_node(key: bytes, head: NodeHead, value: bytes | None) -> bytes:
    numbers = _NODE.pack(head.czxid, head.version, head.created_ms, head.modified_ms)
    if value is None or head.kind:
        extension = _EXTENSION.pack(head.kind, _IS_NULL if value is None else 0)
        return sealed(key, numbers + extension + (value or b""), FLAGGED_NODE_VERSION)
    return sealed(key, numbers + value, RECORD_VERSION)


def decode_node(key: bytes, stored: bytes) -> tuple[NodeHead, bytes | None]:
    """Return head and value of a node.

    Raises:
        RecordError.
    """
    version, body = opened_any(key, stored, (RECORD_VERSION, FLAGGED_NODE_VERSION), _NODE.size)
    head, value = NodeHead(*_NODE.unpack_from(body)), body[_NODE.size :]
    if version == RECORD_VERSION:
        return head, value
    if len(value) < _EXTENSION.size:
        raise RecordError(f"the record of {key!r} is cut short")
    kind, flags = _EXTENSION.unpack_from(value)
    if flags not in (0, _IS_NULL) or not is_kind(kind):
        raise RecordError(f"the record of {key!r} has flags that this program does not know: upgrade it")
    return replace(head, kind=kind), None if flags == _IS_NULL else value[_EXTENSION.size :]


def encode_family(key: bytes, family: Family) -> bytes:
    return sealed(key, _FAMILY.pack(family.creations, family.removals, family.pzxid), RECORD_VERSION)


def decode_family(key: bytes, stored: bytes) -> Family:
    """Return a family.

    Raises:
        RecordError.
    """
    return Family(*_FAMILY.unpack_from(opened(key, stored, RECORD_VERSION, _FAMILY.size)))


def encode_session(key: bytes, record: SessionRecord) -> bytes:
    return sealed_session(key, _SESSION.pack(record.sequence), record.password, record.owner)


def decode_session(key: bytes, stored: bytes) -> SessionRecord:
    """Return a session's record.

    Raises:
        RecordError.
    """
    head, password, owner = opened_session(key, stored, _SESSION.size)
    (sequence,) = _SESSION.unpack(head)
    return SessionRecord(sequence, password, owner)


def encode_events(key: bytes, events: Sequence[WatchEvent]) -> bytes:
    """Return the value of the events key: the events of one revision, if they cannot be inferred from its keys."""
    items = [[_EVENT_CODES[event.type], event.path] for event in events if event.type in _EVENT_CODES]
    packed: bytes = msgpack.packb(items)
    return sealed(key, packed, RECORD_VERSION)


def decode_events(key: bytes, stored: bytes) -> list[WatchEvent]:
    """Return the events of one revision.

    Raises:
        RecordError.
    """
    try:
        items = msgpack.unpackb(opened(key, stored, RECORD_VERSION, 1))
        return [WatchEvent(_EVENT_TYPES[code], path) for code, path in items]
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"the record of {key!r} is malformed: {error}") from error
