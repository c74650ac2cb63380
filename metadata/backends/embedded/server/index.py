"""The index of the embedded store: facts derived from its nodes, in an order in which they can be listed. No I/O.

It has its own column family and is written in the batch of the nodes that it is derived from. The byte map is in
docs/formats-metadata.md. A missing or stale index is rebuilt from the nodes (``rebuild.py``), so releases that do not
know the index may write the store in between.
"""

from __future__ import annotations

import struct

from heliograph.metadata.errors import RecordError
from heliograph.metadata.session.sealing import opened, sealed
from heliograph.metadata.znode import ROOT, Replaced, Znode, due_ms

INDEX_VERSION = 1
INDEX_FAMILY = "index"
INDEX_STATE_KEY = b"state"
CHILD_PREFIX = b"c"
EPHEMERAL_PREFIX = b"e"
DUE_PREFIX = b"d"

IndexChange = tuple[bytes, bytes | None]  # key, and value or None to delete

_COUNT = struct.Struct("<q")  # children of a node
_STATE = struct.Struct("<qq")  # the transaction as of which the index is, nodes of the store
_NUMBER = struct.Struct(">Q")
_NUMBERED_BYTES = 1 + _NUMBER.size  # of a key, before the path


def count_key(path: str) -> bytes:
    return CHILD_PREFIX + path.encode()


def children_prefix(parent: str) -> bytes:
    """Return the prefix of the keys of a node's children; their names follow, in the order of their code points.

    No path contains the byte that separates them.
    """
    return CHILD_PREFIX + parent.encode() + b"\0"


def child_key(path: str) -> bytes:
    parent, _, name = path.rpartition("/")
    return f"c{parent or ROOT}\0{name}".encode()


def ephemerals_prefix(session_id: int) -> bytes:
    return EPHEMERAL_PREFIX + _NUMBER.pack(session_id)


def due_key(wall_ms: int, path: str = "") -> bytes:
    return DUE_PREFIX + _NUMBER.pack(max(wall_ms, 0)) + path.encode()


def numbered_path(key: bytes) -> str:
    """Return the path in the key of an ephemeral or of a node to be reaped."""
    return key[_NUMBERED_BYTES:].decode()


def encode_count(key: bytes, count: int) -> bytes:
    return sealed(key, _COUNT.pack(count), INDEX_VERSION)


def decode_count(key: bytes, value: bytes) -> int:
    """Return the number of a node's children.

    Raises:
        RecordError.
    """
    (count,) = _COUNT.unpack_from(opened(key, value, INDEX_VERSION, _COUNT.size))
    return int(count)


def encode_index_state(zxid: int, nodes: int) -> bytes:
    return sealed(INDEX_STATE_KEY, _STATE.pack(zxid, nodes), INDEX_VERSION)


def decode_index_state(value: bytes | None, zxid: int) -> int | None:
    """Return the number of nodes; None if the index is missing, of another layout, or as of another transaction."""
    if value is None:
        return None
    try:
        found, nodes = _STATE.unpack_from(opened(INDEX_STATE_KEY, value, INDEX_VERSION, _STATE.size))
    except RecordError:
        return None
    return int(nodes) if found == zxid else None


def listed_key(path: str, node: Znode) -> bytes | None:
    """Return the key that lists an ephemeral with its session, or a node with the time from which it may be reaped."""
    if not node.ephemeral_owner:
        return None
    if node.is_ephemeral:
        return ephemerals_prefix(node.ephemeral_owner) + path.encode()
    due = due_ms(node.stat())
    return None if due is None else due_key(due, path)


def index_changes(path: str, replaced: Replaced) -> list[IndexChange]:
    """Return the changes of the index when a node is replaced."""
    old, new = replaced
    changes: list[IndexChange] = []
    if (old is None) is not (new is None) and path != ROOT:
        changes.append((child_key(path), None if new is None else b""))
    count = 0 if new is None else new.child_count
    if count != (0 if old is None else old.child_count):
        key = count_key(path)
        changes.append((key, encode_count(key, count) if count else None))
    before = None if old is None else listed_key(path, old)
    after = None if new is None else listed_key(path, new)
    if before != after:
        if before is not None:
            changes.append((before, None))
        if after is not None:
            changes.append((after, b""))
    return changes
