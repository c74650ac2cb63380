"""A set of entry indexes, kept as bitmaps of 1,024 entries each (pure).

Acknowledged entries above a cursor's mark come in any pattern, a million holes among them. A bit per entry costs the
same whatever the pattern, and adding, asking and removing touch one chunk only.
"""

from __future__ import annotations

from collections.abc import Iterator

CHUNK_BITS = 1024
_SHIFT = 10
_MASK = CHUNK_BITS - 1
_FULL = (1 << CHUNK_BITS) - 1

assert 1 << _SHIFT == CHUNK_BITS


class IndexSet:
    """Integers of 0 and above."""

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}  # chunk number -> bits, never 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, index: int) -> bool:
        return bool(self._chunks.get(index >> _SHIFT, 0) >> (index & _MASK) & 1)

    def add(self, index: int) -> bool:
        """Add one index; False when it was there."""
        number, bit = index >> _SHIFT, 1 << (index & _MASK)
        chunk = self._chunks.get(number, 0)
        if chunk & bit:
            return False
        self._chunks[number] = chunk | bit
        self._count += 1
        return True

    def add_bits(self, base: int, bits: int) -> None:
        """Add ``base + i`` for each bit ``i`` set in ``bits``."""
        number, offset = base >> _SHIFT, base & _MASK
        bits <<= offset
        while bits:
            part = bits & _FULL
            if part:
                old = self._chunks.get(number, 0)
                self._chunks[number] = old | part
                self._count += (old | part).bit_count() - old.bit_count()
            bits >>= CHUNK_BITS
            number += 1

    def remove(self, index: int) -> None:
        """Remove one index if it is there."""
        number, bit = index >> _SHIFT, 1 << (index & _MASK)
        chunk = self._chunks.get(number, 0)
        if chunk & bit:
            self._count -= 1
            self._put(number, chunk & ~bit)

    def drop_range(self, first: int, stop: int) -> None:
        """Remove everything from ``first`` to before ``stop``; the caller knows that nothing lies below ``first``."""
        low, edge = first >> _SHIFT, stop >> _SHIFT
        if edge - low <= len(self._chunks):
            numbers = [number for number in range(low, edge) if number in self._chunks]
        else:
            numbers = [number for number in self._chunks if number < edge]
        for number in numbers:
            self._count -= self._chunks.pop(number).bit_count()
        chunk = self._chunks.get(edge, 0)
        below = chunk & ((1 << (stop & _MASK)) - 1)
        if below:
            self._count -= below.bit_count()
            self._put(edge, chunk & ~below)

    def pop_run(self, index: int) -> int:
        """Remove the unbroken run that starts at ``index``; returns the first index not in it (``index``: no run)."""
        while True:
            number, offset = index >> _SHIFT, index & _MASK
            chunk = self._chunks.get(number, 0)
            shifted = chunk >> offset
            ones = (~shifted & (shifted + 1)).bit_length() - 1
            if ones == 0:
                return index
            self._count -= ones
            self._put(number, chunk & ~(((1 << ones) - 1) << offset))
            index += ones
            if offset + ones < CHUNK_BITS:
                return index

    def next_missing(self, index: int) -> int:
        """The first index at or above ``index`` that is not in the set."""
        while True:
            shifted = self._chunks.get(index >> _SHIFT, 0) >> (index & _MASK)
            ones = (~shifted & (shifted + 1)).bit_length() - 1
            into = (index & _MASK) + ones
            index += ones
            if into < CHUNK_BITS:
                return index

    def clear(self) -> None:
        """Remove everything."""
        self._chunks.clear()
        self._count = 0

    def chunks(self) -> Iterator[tuple[int, int]]:
        """(first index, bits) of each chunk that is not empty, in order."""
        for number in sorted(self._chunks):
            yield number << _SHIFT, self._chunks[number]

    def runs(self) -> Iterator[tuple[int, int]]:
        """Unbroken runs as (first, one past the last), in order."""
        start = stop = -1
        for base, bits in self.chunks():
            at = 0
            while bits:
                zeros = (bits & -bits).bit_length() - 1
                bits >>= zeros
                ones = (~bits & (bits + 1)).bit_length() - 1
                bits >>= ones
                first = base + at + zeros
                if first != stop:
                    if stop > start:
                        yield start, stop
                    start = first
                stop = first + ones
                at += zeros + ones
        if stop > start:
            yield start, stop

    def _put(self, number: int, bits: int) -> None:
        if bits:
            self._chunks[number] = bits
        else:
            self._chunks.pop(number, None)
