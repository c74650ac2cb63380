"""A number for each of some entries, in groups of adjacent indexes (pure).

A cursor keeps two: the messages that are not acknowledged of its partly acknowledged batches, as bits, and how often
consumers gave an entry back.

A change touches one group, and a range of entries is removed group by group, so that neither restoring K of them nor
moving the mark past them looks at the others.
"""

from __future__ import annotations

_SHIFT = 10  # 1,024 indexes in a group


class EntryNumbers:
    """Entries by index, each with a number above 0.

    Attributes:
        count: the entries in all groups; an attribute because every acknowledgement reads it.
    """

    def __init__(self) -> None:
        self._groups: dict[int, dict[int, int]] = {}  # group number -> {index: number, never 0}, never empty
        self.count = 0

    def get(self, index: int) -> int | None:
        group = self._groups.get(index >> _SHIFT)
        return None if group is None else group.get(index)

    def narrow(self, index: int, bits: int) -> int:
        """Clear the bits of an entry that are not in ``bits``. An entry that is not here has them all; one without bits
        left is removed.

        Returns:
            the bits left, -1 if this changed nothing.
        """
        number = index >> _SHIFT
        group = self._groups.get(number)
        if group is None:
            if bits:
                self._groups[number] = {index: bits}
                self.count += 1
            return bits
        old = group.get(index)
        if old is None:
            if bits:
                group[index] = bits
                self.count += 1
            return bits
        bits &= old
        if bits == old:
            return -1
        if bits:
            group[index] = bits
        else:
            self.discard(index)
        return bits

    def set(self, index: int, number: int) -> None:
        assert number > 0, "an entry without a number is not here"
        group = self._groups.setdefault(index >> _SHIFT, {})
        before = len(group)
        group[index] = number
        self.count += len(group) - before

    def discard(self, index: int) -> None:
        group = self._groups.get(index >> _SHIFT)
        if group is not None and group.pop(index, None) is not None:
            self._removed(index >> _SHIFT, group, 1)

    def drop_range(self, first: int, stop: int) -> None:
        """Remove every entry from ``first`` to before ``stop``. There must be none below ``first``."""
        assert 0 <= first <= stop, "a range of indexes"
        low, edge = first >> _SHIFT, stop >> _SHIFT
        if stop - first == 1:  # as most are
            self.discard(first)
            return
        near = edge - low <= len(self._groups)
        numbers = range(low, edge) if near else [number for number in self._groups if number < edge]
        for number in numbers:
            gone = self._groups.pop(number, None)
            if gone is not None:
                self.count -= len(gone)
        group = self._groups.get(edge)
        if group is not None:
            below = [index for index in group if index < stop]
            for index in below:
                del group[index]
            self._removed(edge, group, len(below))

    def drop_bits(self, first: int, bits: int) -> None:
        """Remove ``first + i`` for each bit ``i`` set in ``bits``."""
        for number in range(first >> _SHIFT, (first + bits.bit_length() - 1 >> _SHIFT) + 1):
            group = self._groups.get(number)
            if group is not None:
                self._drop_from(number, group, first, bits)

    def clear(self) -> None:
        self._groups.clear()
        self.count = 0

    def group_numbers(self) -> list[int]:
        """Return the numbers of the groups, in no order; ``group`` returns what each holds."""
        return list(self._groups)

    def group(self, number: int) -> list[tuple[int, int]]:
        """Return (index, number) of each entry of one group."""
        return list(self._groups.get(number, {}).items())

    def _drop_from(self, number: int, group: dict[int, int], first: int, bits: int) -> None:
        """Remove a group's entries whose bit is set. The cost is the lower of the numbers of bits and entries."""
        base = number << _SHIFT
        bits = bits >> base - first if base >= first else bits << first - base
        bits &= (1 << (1 << _SHIFT)) - 1
        before = len(group)
        if bits.bit_count() < before:
            while bits:
                lowest = bits & -bits
                group.pop(base + lowest.bit_length() - 1, None)
                bits ^= lowest
        else:
            for index in [index for index in group if bits >> index - base & 1]:
                del group[index]
        self._removed(number, group, before - len(group))

    def _removed(self, number: int, group: dict[int, int], count: int) -> None:
        self.count -= count
        if not group:
            del self._groups[number]
        assert self.count >= len(self._groups), "a group has an entry"
