"""Some messages of an entry as the bits of one number (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, count

_FEW = 32  # one message of so many: to go from bit to bit is cheaper than to look at all
_IS_ONE = bytes(digit == ord("1") for digit in range(256))


def lowest(bits: int, number: int) -> int:
    """Return the lowest ``number`` bits that are set, of more."""
    low, high = 0, bits.bit_length()  # the number of places that hold them
    while low < high:
        middle = (low + high) // 2
        if (bits & (1 << middle) - 1).bit_count() < number:
            low = middle + 1
        else:
            high = middle
    return bits & (1 << low) - 1


def places_of(bits: int) -> list[int]:
    """Return the places of the bits that are set, in order. The time is proportional to their range, not its square."""
    if bits.bit_count() * _FEW > bits.bit_length():
        return list(compress(count(), f"{bits:b}".encode().translate(_IS_ONE)[::-1]))
    found = []
    while bits:
        found.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return found


def chosen(values: Sequence[int], bits: int) -> Iterable[int]:
    """Return the values at the places of the bits that are set, in order."""
    if bits.bit_count() * _FEW > bits.bit_length():
        return compress(values, f"{bits:b}".encode().translate(_IS_ONE)[::-1])
    return [values[place] for place in places_of(bits)]


def bits_of(places: Iterable[int], messages: int) -> int:
    """Return the bits at these places, all of them below ``messages``."""
    packed = bytearray((messages >> 3) + 1)
    for place in places:
        packed[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(packed, "little")
