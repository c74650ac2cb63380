"""The head of every record that the backends store: a checksum over key and content, and the layout's version.

Bytes 0-3 are the CRC32C of the key followed by everything from byte 4 on; byte 4 is the version. No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c

from heliograph.metadata.errors import RecordError

SESSION_VERSION = 1
OWNED_SESSION_VERSION = 2  # a session with its owner before the password; written only for one that was taken over

_HEAD = struct.Struct("<IB")  # CRC32C, version
_OWNER = struct.Struct("<B")  # bytes of the owner's name, which follows
HEAD_BYTES = _HEAD.size


def sealed(key: bytes, body: bytes, version: int) -> bytes:
    """Return a value with its head before it."""
    tail = bytes((version,)) + body
    return crc32c.crc32c(tail, crc32c.crc32c(key)).to_bytes(4, "little") + tail


def opened(key: bytes, stored: bytes, version: int, size_min: int) -> bytes:
    """Return the value of a record of one version, without its head; see ``opened_any``."""
    return opened_any(key, stored, (version,), size_min)[1]


def opened_any(key: bytes, stored: bytes, versions: Sequence[int], size_min: int) -> tuple[int, bytes]:
    """Return the version of a record and its value without the head.

    Args:
        versions: the versions that the caller can read.
        size_min: the least number of bytes of the value.

    Raises:
        RecordError: the record is cut short, damaged, or of another version.
    """
    if len(stored) < HEAD_BYTES + size_min:
        raise RecordError(f"the record of {key!r} is cut short at {len(stored)} bytes")
    checksum, found = _HEAD.unpack_from(stored)
    if checksum != crc32c.crc32c(stored[4:], crc32c.crc32c(key)):
        raise RecordError(f"the record of {key!r} fails its checksum")
    if found not in versions:
        known = " and ".join(map(str, versions))
        raise RecordError(f"the record of {key!r} has layout {found}, this program reads {known}: upgrade it")
    return found, stored[HEAD_BYTES:]


def sealed_session(key: bytes, head: bytes, password: str, owner: str) -> bytes:
    """Return the record of a session.

    Args:
        head: the backend's data about the session, of fixed length.
        owner: the name of the client that last took the session over, "" for the client that began it.
    """
    if not owner:
        return sealed(key, head + password.encode(), SESSION_VERSION)
    name = owner.encode()
    return sealed(key, head + _OWNER.pack(len(name)) + name + password.encode(), OWNED_SESSION_VERSION)


def opened_session(key: bytes, stored: bytes, head_bytes: int) -> tuple[bytes, str, str]:
    """Return the backend's head of a session's record, the password and the owner.

    Raises:
        RecordError: see ``opened_any``.
    """
    version, body = opened_any(key, stored, (SESSION_VERSION, OWNED_SESSION_VERSION), head_bytes + _OWNER.size)
    password, owner = body[head_bytes:], b""
    if version == OWNED_SESSION_VERSION:
        start = _OWNER.size + password[0]
        owner, password = password[_OWNER.size : start], password[start:]
    return body[:head_bytes], password.decode(), owner.decode()
