"""The embedded store's records <-> keys and values of RocksDB; the byte map is in docs/formats-metadata.md. No I/O.

Every value begins with a CRC32C of its key and of all bytes after the checksum, and the version of its layout.
"""

from __future__ import annotations

import struct

from heliograph.metadata.errors import RecordError
from heliograph.metadata.session.sealing import opened, opened_any, opened_session, sealed, sealed_session
from heliograph.metadata.tree import TreeSession
from heliograph.metadata.znode import Znode

RECORD_VERSION = 1
FLAGGED_NODE_VERSION = 2  # a node with flags before its value; written only where the value is null, or for a kind
NODE_PREFIX = b"n"
SESSION_PREFIX = b"s"
STATE_KEY = b"mstate"

_NODE = struct.Struct("<8q")  # czxid, mzxid, pzxid, version, creations, ephemeral owner, created ms, modified ms
_IS_NULL = 1  # the flag of a node that has null instead of a value
_SESSION = struct.Struct("<I")  # timeout ms; owner and password follow
_SESSION_ID = struct.Struct(">Q")
_STATE = struct.Struct("<q")  # last zxid


def node_key(path: str) -> bytes:
    return NODE_PREFIX + path.encode()


def session_key(session_id: int) -> bytes:
    return SESSION_PREFIX + _SESSION_ID.pack(session_id)


def encode_node(key: bytes, node: Znode) -> bytes:
    numbers = _NODE.pack(
        node.czxid, node.mzxid, node.pzxid, node.version, node.creations, node.ephemeral_owner, node.created_ms,
        node.modified_ms,
    )  # fmt: skip
    if node.value is None or node.ephemeral_owner < 0:
        flags = _IS_NULL if node.value is None else 0
        return sealed(key, numbers + bytes((flags,)) + (node.value or b""), FLAGGED_NODE_VERSION)
    return sealed(key, numbers + node.value, RECORD_VERSION)


def decode_node(key: bytes, value: bytes) -> tuple[str, Znode]:
    """Return path and node.

    Raises:
        RecordError.
    """
    version, body = opened_any(key, value, (RECORD_VERSION, FLAGGED_NODE_VERSION), _NODE.size)
    kept: bytes | None = body[_NODE.size :]
    if version == FLAGGED_NODE_VERSION:
        flags, kept = body[_NODE.size : _NODE.size + 1], body[_NODE.size + 1 :]
        if flags == bytes((_IS_NULL,)):
            kept = None
        elif flags != b"\0":
            raise RecordError(f"the record of {key!r} has flags that this program does not know: upgrade it")
    return key[1:].decode(), Znode(kept, *_NODE.unpack_from(body))


def encode_session(key: bytes, session: TreeSession) -> bytes:
    return sealed_session(key, _SESSION.pack(session.timeout_ms), session.password, session.owner)


def decode_session(key: bytes, value: bytes) -> TreeSession:
    """Return a session whose deadline is still to be set.

    Raises:
        RecordError.
    """
    head, password, owner = opened_session(key, value, _SESSION.size)
    (timeout_ms,) = _SESSION.unpack(head)
    (session_id,) = _SESSION_ID.unpack(key[1:])
    return TreeSession(session_id, password, timeout_ms, 0, owner=owner)


def encode_state(zxid: int) -> bytes:
    return sealed(STATE_KEY, _STATE.pack(zxid), RECORD_VERSION)


def decode_state(value: bytes) -> int:
    """Return the last zxid.

    Raises:
        RecordError.
    """
    (zxid,) = _STATE.unpack_from(opened(STATE_KEY, value, RECORD_VERSION, _STATE.size))
    return int(zxid)
