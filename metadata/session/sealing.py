"""The head of every record that the backends store: a checksum over key and content, and the layout's version.

Bytes 0-3 are the CRC32C of the key and then of everything from byte 4 on, byte 4 is the version. No I/O.
"""

from __future__ import annotations

import struct

import crc32c

from heliograph.metadata.errors import RecordError

_HEAD = struct.Struct("<IB")  # CRC32C, version
HEAD_BYTES = _HEAD.size


def sealed(key: bytes, body: bytes, version: int) -> bytes:
    """Return a value with its head before it."""
    tail = bytes((version,)) + body
    return crc32c.crc32c(tail, crc32c.crc32c(key)).to_bytes(4, "little") + tail


def opened(key: bytes, stored: bytes, version: int, size_min: int) -> bytes:
    """Return the value without its head.

    Args:
        size_min: the number of bytes that it must have at least.

    Raises:
        RecordError: the record is cut short, damaged, or of another version.
    """
    if len(stored) < HEAD_BYTES + size_min:
        raise RecordError(f"the record of {key!r} is cut short at {len(stored)} bytes")
    checksum, found = _HEAD.unpack_from(stored)
    if checksum != crc32c.crc32c(stored[4:], crc32c.crc32c(key)):
        raise RecordError(f"the record of {key!r} fails its checksum")
    if found != version:
        raise RecordError(f"the record of {key!r} has layout {found}, this program reads {version}: upgrade it")
    return stored[HEAD_BYTES:]
