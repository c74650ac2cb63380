"""A set of entry indexes, kept as bitmaps of 1,024 entries each (pure).

The entries acknowledged above a cursor's mark come in any pattern, with up to a million holes. One bit per entry costs
the same for every pattern, and to add, test or remove an index touches one chunk only.
"""

from __future__ import annotations

from collections.abc import Iterator

CHUNK_BITS = 1024
_SHIFT = 10
_MASK = CHUNK_BITS - 1
_FULL = (1 << CHUNK_BITS) - 1

assert 1 << _SHIFT == CHUNK_BITS


class IndexSet:
    """A set of integers of 0 and above.

    Attributes:
        count: of the integers.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}  # chunk number -> bits, never 0
        self.count = 0
        self._runs = 0  # 0 <= _runs <= count

    def __contains__(self, index: int) -> bool:
        return bool(self._chunks.get(index >> _SHIFT, 0) >> (index & _MASK) & 1)

    @property
    def run_count(self) -> int:
        """Return the number of unbroken runs, which is counted as indexes come and go."""
        return self._runs

    def add(self, index: int) -> bool:
        """Add one index. Return False if it was there."""
        number, place = index >> _SHIFT, index & _MASK
        chunk = self._chunks.get(number, 0)
        near = chunk << 1 >> place & 7  # the bits at place - 1, place and place + 1
        if near & 2:
            return False
        self._chunks[number] = chunk | 1 << place
        self.count += 1
        self._runs += 1 - self._neighbours(number, place, near)
        return True

    def add_bits(self, base: int, bits: int) -> None:
        """Add ``base + i`` for each bit ``i`` set in ``bits``."""
        assert base >= 0, "indexes begin at 0"
        assert bits >= 0, "a finite set of bits"
        number, offset = base >> _SHIFT, base & _MASK
        bits <<= offset
        while bits:
            part = bits & _FULL
            if part:
                old = self._chunks.get(number, 0)
                self._replace(number, old, old | part)
            bits >>= CHUNK_BITS
            number += 1

    def remove(self, index: int) -> None:
        """Remove one index if it is there."""
        number, place = index >> _SHIFT, index & _MASK
        chunk = self._chunks.get(number, 0)
        near = chunk << 1 >> place & 7
        if near & 2:
            self.count -= 1
            self._runs += self._neighbours(number, place, near) - 1
            self._put(number, chunk ^ 1 << place)

    def drop_range(self, first: int, stop: int) -> None:
        """Remove every index from ``first`` to before ``stop``. The set must hold no index below ``first``."""
        assert 0 <= first <= stop, "a range of indexes"
        low, edge = first >> _SHIFT, stop >> _SHIFT
        if edge - low <= len(self._chunks):
            numbers = [number for number in range(low, edge) if number in self._chunks]
        else:
            numbers = [number for number in self._chunks if number < edge]
        if numbers:
            self._drop_chunks(numbers, edge)
        chunk = self._chunks.get(edge, 0)
        below = chunk & ((1 << (stop & _MASK)) - 1)
        if below:
            self._replace(edge, chunk, chunk & ~below)
        assert 0 <= self._runs <= self.count, "every run has an index"

    def pop_run(self, index: int) -> int:
        """Remove the unbroken run that starts at ``index``. Return the first index after it (``index`` if there is no
        run)."""
        first = index
        while True:
            number, offset = index >> _SHIFT, index & _MASK
            chunk = self._chunks.get(number, 0)
            shifted = chunk >> offset
            ones = (~shifted & (shifted + 1)).bit_length() - 1
            if ones == 0:
                return index
            if index == first and (first - 1) not in self:
                self._runs -= 1
            self.count -= ones
            self._put(number, chunk & ~(((1 << ones) - 1) << offset))
            index += ones
            if offset + ones < CHUNK_BITS:
                return index

    def next_missing(self, index: int) -> int:
        """Return the first index at or above ``index`` that is not in the set."""
        while True:
            shifted = self._chunks.get(index >> _SHIFT, 0) >> (index & _MASK)
            ones = (~shifted & (shifted + 1)).bit_length() - 1
            into = (index & _MASK) + ones
            index += ones
            if into < CHUNK_BITS:
                return index

    def after_missing(self, index: int, count: int) -> int:
        """Return the index after the first ``count`` indexes at or above ``index`` that are not in the set."""
        for number in sorted(self._chunks) if count else ():
            base = number << _SHIFT
            if base + CHUNK_BITS <= index:
                continue
            if base >= index + count:
                break
            count -= max(base - index, 0)
            index = max(base, index)
            free = (self._chunks[number] ^ _FULL) >> (index - base)
            if count <= free.bit_count():
                for _ in range(count - 1):
                    free &= free - 1  # clears the lowest bit
                return index + (free & -free).bit_length()
            count -= free.bit_count()
            index = base + CHUNK_BITS
        return index + count

    def clear(self) -> None:
        self._chunks.clear()
        self.count = self._runs = 0

    def copy(self) -> IndexSet:
        other = IndexSet()
        other._chunks, other.count, other._runs = self._chunks.copy(), self.count, self._runs
        return other

    def chunk_numbers(self) -> list[int]:
        """Return the numbers of the chunks that are not empty, in no order; ``chunk`` returns what each holds."""
        return list(self._chunks)

    def chunk(self, number: int) -> tuple[int, int]:
        """Return (first index, bits) of one chunk; no bits if it is empty."""
        return number << _SHIFT, self._chunks.get(number, 0)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield (first index, bits) of each chunk that is not empty, in order."""
        for number in sorted(self._chunks):
            yield number << _SHIFT, self._chunks[number]

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the unbroken runs as (first, one past the last), in order."""
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

    def _neighbours(self, number: int, place: int, near: int) -> int:
        """Return how many of the two indexes beside one are in the set. ``near`` has the bits of those in the same
        chunk."""
        if place == 0:
            near |= self._chunks.get(number - 1, 0) >> _MASK
        elif place == _MASK:
            near |= (self._chunks.get(number + 1, 0) & 1) << 2
        return (near & 1) + (near >> 2)

    def _drop_chunks(self, numbers: list[int], edge: int) -> None:
        """Remove whole chunks, which are all before the chunk ``edge``."""
        get = self._chunks.get
        dropped = [self._chunks[number] for number in numbers]
        self.count -= sum(map(int.bit_count, dropped))
        self._runs -= sum(
            _starts(bits, get(number - 1, 0) >> _MASK) for number, bits in zip(numbers, dropped, strict=True)
        )
        if get(edge - 1, 0) >> _MASK & get(edge, 0) & 1:
            self._runs += 1  # the run across the border starts in ``edge`` now
        for number in numbers:
            del self._chunks[number]

    def _replace(self, number: int, old: int, new: int) -> None:
        """Replace the bits of a chunk and update the counts."""
        before = self._chunks.get(number - 1, 0) >> _MASK
        behind = self._chunks.get(number + 1, 0) & 1
        self.count += new.bit_count() - old.bit_count()
        self._runs += _starts(new, before) - _starts(old, before)
        if behind:  # a run starts in the next chunk if the last bit of this one is clear
            self._runs += (old >> _MASK) - (new >> _MASK)
        self._put(number, new)

    def _put(self, number: int, bits: int) -> None:
        if bits:
            self._chunks[number] = bits
        else:
            self._chunks.pop(number, None)


def _starts(bits: int, before: int) -> int:
    """Return how many runs start in a chunk. ``before`` is the bit before its first."""
    return (bits & ~(bits << 1 | before)).bit_count()
