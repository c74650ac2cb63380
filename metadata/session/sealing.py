"""The head of every record that the backends store: a checksum over key and content, and the layout's version.

Bytes 0-3 are the CRC32C of the key and then of everything from byte 4 on, byte 4 is the version. No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c

from heliograph.metadata.errors import RecordError

_HEAD = struct.Struct("<IB")  # CRC32C, version
HEAD_BYTES = _HEAD.size


def sealed(key: bytes, body: bytes, version: int) -> bytes:
    """Return a value with its head before it."""
    tail = bytes((version,)) + body
    return crc32c.crc32c(tail, crc32c.crc32c(key)).to_bytes(4, "little") + tail


def opened(key: bytes, stored: bytes, version: int, size_min: int) -> bytes:
    """Return the value of a record that has one version, without its head; see ``opened_any``."""
    return opened_any(key, stored, (version,), size_min)[1]


def opened_any(key: bytes, stored: bytes, versions: Sequence[int], size_min: int) -> tuple[int, bytes]:
    """Return the version of a record and its value without the head.

    Args:
        versions: those that the caller reads.
        size_min: the number of bytes that the value must have at least.

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
