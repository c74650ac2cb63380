"""The embedded store's records <-> keys and values of RocksDB; the byte map is in docs/formats.md. No I/O.

Every value begins with a CRC32C of its key and of what follows, and the version of its layout.
"""

from __future__ import annotations

import struct

import crc32c

from metadata.errors import RecordError
from metadata.tree import Session
from metadata.znode import Znode

RECORD_VERSION = 1
NODE_PREFIX = b"n"
SESSION_PREFIX = b"s"
STATE_KEY = b"mstate"

_HEAD = struct.Struct("<IB")  # CRC32C, version
_NODE = struct.Struct("<8q")  # czxid, mzxid, pzxid, version, creations, ephemeral owner, created ms, modified ms
_SESSION = struct.Struct("<I")  # timeout ms; the password follows
_SESSION_ID = struct.Struct(">Q")
_STATE = struct.Struct("<q")  # last zxid


def node_key(path: str) -> bytes:
    """The key of a node."""
    return NODE_PREFIX + path.encode()


def session_key(session_id: int) -> bytes:
    """The key of a session."""
    return SESSION_PREFIX + _SESSION_ID.pack(session_id)


def encode_node(key: bytes, node: Znode) -> bytes:
    """The value of a node."""
    numbers = _NODE.pack(
        node.czxid, node.mzxid, node.pzxid, node.version, node.creations, node.ephemeral_owner, node.created_ms,
        node.modified_ms,
    )  # fmt: skip
    return _sealed(key, numbers + node.value)


def decode_node(key: bytes, value: bytes) -> tuple[str, Znode]:
    """Path and node.

    Raises:
        RecordError.
    """
    body = _opened(key, value, _NODE.size)
    return key[1:].decode(), Znode(body[_NODE.size :], *_NODE.unpack_from(body))


def encode_session(key: bytes, session: Session) -> bytes:
    """The value of a session."""
    return _sealed(key, _SESSION.pack(session.timeout_ms) + session.password.encode())


def decode_session(key: bytes, value: bytes) -> Session:
    """A session whose deadline is still to be set.

    Raises:
        RecordError.
    """
    body = _opened(key, value, _SESSION.size)
    (timeout_ms,) = _SESSION.unpack_from(body)
    (session_id,) = _SESSION_ID.unpack(key[1:])
    return Session(session_id, body[_SESSION.size :].decode(), timeout_ms, 0)


def encode_state(zxid: int) -> bytes:
    """The value of STATE_KEY."""
    return _sealed(STATE_KEY, _STATE.pack(zxid))


def decode_state(value: bytes) -> int:
    """The last zxid.

    Raises:
        RecordError.
    """
    (zxid,) = _STATE.unpack_from(_opened(STATE_KEY, value, _STATE.size))
    return int(zxid)


def _sealed(key: bytes, body: bytes) -> bytes:
    tail = bytes((RECORD_VERSION,)) + body
    return crc32c.crc32c(tail, crc32c.crc32c(key)).to_bytes(4, "little") + tail


def _opened(key: bytes, value: bytes, size_min: int) -> bytes:
    if len(value) < _HEAD.size + size_min:
        raise RecordError(f"the record of {key!r} is cut short at {len(value)} bytes")
    checksum, version = _HEAD.unpack_from(value)
    if checksum != crc32c.crc32c(value[4:], crc32c.crc32c(key)):
        raise RecordError(f"the record of {key!r} fails its checksum")
    if version != RECORD_VERSION:
        raise RecordError(
            f"the record of {key!r} has layout {version}, this program reads {RECORD_VERSION}: upgrade it"
        )
    return value[_HEAD.size :]
