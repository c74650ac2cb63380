"""Values as bytes, and their locations. Pure: no I/O.

A value is a frame: ``HV``, version (u8), number of parts (u32), the length of each (u64), big-endian, then the parts: a
pickle of protocol 5 and the buffers that it refers to. Frames follow each other in chunks, each of which is an entry.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import crc32c

from heliograph.base.errors import BadRequestError, ChecksumError, ProtocolError

CHUNK_BYTES = (1 << 20) - (16 << 10)  # of an entry; a bookie answers up to 1 MiB at once
_HEAD = struct.Struct(">2sBI")
_MAGIC, _VERSION = b"HV", 1
_LOCATION_VERSION = "1"


@dataclass(frozen=True, slots=True)
class Location:
    """Where a value is stored.

    Args:
        step: the number of its step.
        offset: of its first byte in the first entry.
        size: of its frame, in bytes.
        checksum: CRC32C of the frame.
        entries: ledger id, first and last entry id of each run of its entries, in their order.
    """

    step: int
    offset: int
    size: int
    checksum: int
    entries: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        runs = ",".join(f"{ledger}.{first}-{last}" for ledger, first, last in self.entries)
        return f"{_LOCATION_VERSION}:{self.step}:{self.offset}:{self.size}:{self.checksum:08x}:{runs}"

    @staticmethod
    def parse(text: str) -> Location:
        """Return the location that ``str`` wrote.

        Raises:
            BadRequestError: the text is none, or of another version.
        """
        try:
            version, step, offset, size, checksum, runs = text.split(":")
            if version != _LOCATION_VERSION:
                raise ValueError(version)
            entries = []
            for run in runs.split(","):
                ledger, _, rest = run.partition(".")
                first, _, last = rest.partition("-")
                entries.append((int(ledger), int(first), int(last)))
            found = Location(int(step), int(offset), int(size), int(checksum, 16), tuple(entries))
        except (ValueError, AttributeError, TypeError) as error:
            raise BadRequestError(f"{text!r:.200} is no location of a value", field="locations") from error
        entries_max = 1 + (found.offset + found.size) // CHUNK_BYTES
        is_wrong = min(found.step, found.offset, found.size) < 0 or any(first > last for _, first, last in entries)
        if is_wrong or sum(last - first + 1 for _, first, last in entries) > entries_max:
            raise BadRequestError(f"{text!r:.200} is no location of a value", field="locations")
        return found

    def positions(self) -> Iterator[tuple[int, int]]:
        """Yield the ledger id and entry id of each entry."""
        for ledger, first, last in self.entries:
            for entry in range(first, last + 1):
                yield ledger, entry


def runs_of(positions: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return positions as runs of consecutive entries."""
    runs: list[tuple[int, int, int]] = []
    for ledger, entry in positions:
        if runs and (runs[-1][0], runs[-1][2] + 1) == (ledger, entry):
            runs[-1] = ledger, runs[-1][1], entry
        else:
            runs.append((ledger, entry, entry))
    return tuple(runs)


def framed(value: Any) -> list[memoryview]:
    """Return the parts of a value's frame; parts of arrays are views of the arrays themselves.

    Raises:
        BadRequestError: the value does not pickle.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = pickle.dumps(_compact(value), protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(body), *(one.raw() for one in buffers)]
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError, BufferError) as error:
        raise BadRequestError(f"a value does not pickle: {error}", field="values") from error
    lengths = struct.pack(f">{len(parts)}Q", *(part.nbytes for part in parts))
    return [memoryview(_HEAD.pack(_MAGIC, _VERSION, len(parts)) + lengths), *parts]


def _compact(value: Any) -> Any:
    """Return a tensor of torch without the storage that it is a view of, which its pickle would hold as a whole."""
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage"):
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    return value


def checksum_of(parts: Sequence[memoryview]) -> int:
    """Return the CRC32C of a frame."""
    checksum = 0
    for part in parts:
        checksum = crc32c.crc32c(part, checksum)
    return checksum


def unframed(frame: bytearray, checksum: int) -> Any:
    """Return the value of a frame. Its arrays use the memory of the frame.

    Raises:
        ChecksumError: the bytes differ from the written ones.
        ProtocolError: they are no frame, or the value cannot be unpickled here.
    """
    if crc32c.crc32c(frame) != checksum:
        raise ChecksumError("the bytes of a value are not those that were written")
    view = memoryview(frame)
    try:
        magic, version, count = _HEAD.unpack_from(view)
        if (magic, version) != (_MAGIC, _VERSION) or not 1 <= count <= len(frame) // 8:
            raise ProtocolError(f"not a value of version {_VERSION}")
        lengths = struct.unpack_from(f">{count}Q", view, _HEAD.size)
        start = _HEAD.size + 8 * count
        if start + sum(lengths) != len(frame):
            raise ProtocolError("a value has other parts than its head says")
        parts = []
        for length in lengths:
            parts.append(view[start : start + length])
            start += length
        return pickle.loads(parts[0], buffers=parts[1:])
    except struct.error as error:
        raise ProtocolError("not a value") from error
    except ProtocolError:
        raise
    except Exception as error:  # unpickling runs the constructors of the values' classes
        raise ProtocolError(f"a value cannot be unpickled: {error!r:.500}") from error


class Packer:
    """Divides frames into chunks of ``CHUNK_BYTES``, one after the other."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._bytes = 0  # 0 <= _bytes < CHUNK_BYTES
        self._number = 0  # of the chunk that is being filled

    @property
    def place(self) -> tuple[int, int]:
        """Return the chunk and the offset in it where the next byte goes."""
        return self._number, self._bytes

    def add(self, parts: Sequence[memoryview]) -> Iterator[bytes]:
        """Add a frame; yield each chunk that is full."""
        for part in parts:
            rest = part
            while rest.nbytes:
                taken = rest[: CHUNK_BYTES - self._bytes]
                self._parts.append(taken)
                self._bytes += taken.nbytes
                rest = rest[taken.nbytes :]
                if self._bytes == CHUNK_BYTES:
                    yield self._full()

    def end(self) -> Iterator[bytes]:
        """Yield the last chunk, if it has bytes."""
        if self._bytes:
            yield self._full()

    def _full(self) -> bytes:
        chunk = b"".join(self._parts)
        self._parts, self._bytes = [], 0
        self._number += 1
        return chunk
