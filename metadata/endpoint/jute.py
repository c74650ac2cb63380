"""Jute, ZooKeeper's serialisation: big endian numbers, counted bytes, counted lists. No I/O.

A count of -1 stands for null, which is read as empty. Reading never goes beyond the bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from metadata.errors import ProtocolError

T = TypeVar("T")

_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_SIGN_32 = 1 << 31
_SIGN_64 = 1 << 63


class JuteReader:
    """Reads one record after the other from a frame; a ProtocolError says that the bytes are not what was asked for."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data = data
        self._offset = offset

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._offset

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        if not 0 <= count <= self.remaining:
            raise ProtocolError(f"{count} bytes are announced where {self.remaining} are left")
        start, self._offset = self._offset, self._offset + count
        return self._data[start : self._offset]

    def boolean(self) -> bool:
        """One byte."""
        return self.take(1) != b"\0"

    def int32(self) -> int:
        """Four bytes, signed."""
        number: int = _INT.unpack(self.take(4))[0]
        return number

    def int64(self) -> int:
        """Eight bytes, signed."""
        number: int = _LONG.unpack(self.take(8))[0]
        return number

    def buffer(self) -> bytes:
        """Counted bytes."""
        count = self.int32()
        return b"" if count == -1 else self.take(count)

    def string(self) -> str:
        """Counted UTF-8; single surrogates pass, as Java writes them."""
        try:
            return self.buffer().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a string is not UTF-8: {error}") from error

    def vector(self, read: Callable[[JuteReader], T], item_bytes_min: int = 4) -> list[T]:
        """A counted list of what ``read`` reads, each at least ``item_bytes_min`` long."""
        count = self.int32()
        if count == -1:
            return []
        if not 0 <= count <= self.remaining // item_bytes_min:
            raise ProtocolError(f"a list of {count} items cannot be in {self.remaining} bytes")
        return [read(self) for _ in range(count)]

    def strings(self) -> list[str]:
        """A counted list of strings."""
        return self.vector(JuteReader.string)


def boolean(value: bool) -> bytes:
    """One byte."""
    return b"\1" if value else b"\0"


def int32(number: int) -> bytes:
    """Four bytes, signed; a number beyond them wraps round, as a Java int does."""
    return _INT.pack((number + _SIGN_32) % (1 << 32) - _SIGN_32)


def int64(number: int) -> bytes:
    """Eight bytes, signed; a number beyond them wraps round, as a Java long does."""
    return _LONG.pack(signed_64(number))


def signed_64(number: int) -> int:
    """The number that ``int64`` carries for ``number``."""
    return (number + _SIGN_64) % (1 << 64) - _SIGN_64


def buffer(data: bytes) -> bytes:
    """Counted bytes."""
    return _INT.pack(len(data)) + data


def string(text: str) -> bytes:
    """Counted UTF-8."""
    return buffer(text.encode("utf-8", "surrogatepass"))


def vector(items: Iterable[bytes]) -> bytes:
    """A counted list of encoded items."""
    encoded = list(items)
    return _INT.pack(len(encoded)) + b"".join(encoded)
