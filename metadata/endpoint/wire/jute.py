"""Jute, ZooKeeper's serialisation: big endian numbers, counted bytes, counted lists. No I/O.

A count of -1 stands for null, which is read as empty, except in the values of nodes. No read goes beyond the end of the
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from heliograph.metadata.errors import MetadataProtocolError

T = TypeVar("T")

_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_SIGN_32 = 1 << 31
_SIGN_64 = 1 << 63


class JuteReader:
    """A reader of the values of a frame, in order. Every read raises MetadataProtocolError if the bytes do not fit."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data = data
        self._offset = offset

    @property
    def remaining(self) -> int:
        """Return the number of bytes not read yet."""
        return len(self._data) - self._offset

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        if not 0 <= count <= self.remaining:
            raise MetadataProtocolError(f"{count} bytes are announced, {self.remaining} are left")
        start, self._offset = self._offset, self._offset + count
        return self._data[start : self._offset]

    def boolean(self) -> bool:
        return self.take(1) != b"\0"

    def int32(self) -> int:
        """Read four bytes, signed."""
        number: int = _INT.unpack(self.take(4))[0]
        return number

    def int64(self) -> int:
        """Read eight bytes, signed."""
        number: int = _LONG.unpack(self.take(8))[0]
        return number

    def buffer(self) -> bytes:
        count = self.int32()
        return b"" if count == -1 else self.take(count)

    def nullable_buffer(self) -> bytes | None:
        """Read counted bytes, or None for null."""
        count = self.int32()
        return None if count == -1 else self.take(count)

    def string(self) -> str:
        """Read counted UTF-8; single surrogates are accepted, because Java writes them."""
        try:
            return self.buffer().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise MetadataProtocolError(f"a string is not UTF-8: {error}") from error

    def vector(self, read: Callable[[JuteReader], T], item_bytes_min: int = 4) -> list[T]:
        """Read a counted list of items with ``read``, each at least ``item_bytes_min`` long."""
        count = self.int32()
        if count == -1:
            return []
        if not 0 <= count <= self.remaining // item_bytes_min:
            raise MetadataProtocolError(f"a list of {count} items cannot be in {self.remaining} bytes")
        return [read(self) for _ in range(count)]

    def strings(self) -> list[str]:
        return self.vector(JuteReader.string)


def boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def int32(number: int) -> bytes:
    """Return four bytes, signed; a number out of range wraps around, as a Java int does."""
    return _INT.pack((number + _SIGN_32) % (1 << 32) - _SIGN_32)


def int64(number: int) -> bytes:
    """Return eight bytes, signed; a number out of range wraps around, as a Java long does."""
    return _LONG.pack(signed_64(number))


def signed_64(number: int) -> int:
    """Return the number that ``int64`` encodes for ``number``."""
    return (number + _SIGN_64) % (1 << 64) - _SIGN_64


def buffer(data: bytes | None) -> bytes:
    """Return counted bytes; None is null."""
    if data is None:
        return _INT.pack(-1)
    return _INT.pack(len(data)) + data


def string(text: str) -> bytes:
    return buffer(text.encode("utf-8", "surrogatepass"))


def vector(items: Iterable[bytes]) -> bytes:
    """Return a counted list of encoded items."""
    encoded = list(items)
    return _INT.pack(len(encoded)) + b"".join(encoded)
