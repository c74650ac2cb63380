"""CRC32C of two pieces of data in a row from the checksums of each, so that nothing large is gone through twice.

The checksum of A followed by n bytes is that of A, moved on by n zero bytes, XOR the checksum of those n bytes. Moving
on is linear, so it is done in a few table look-ups: one table for each power of two blocks, and what is less than a
block by the checksum function itself.
"""

from __future__ import annotations

from functools import cache

import crc32c

_BLOCK_BITS = 12
_ZEROS = memoryview(bytes(1 << _BLOCK_BITS))
_crc = crc32c.crc32c

_Table = tuple[list[int], list[int], list[int], list[int]]  # by the four bytes of a checksum, the lowest first


def joined(first: int, second: int, second_bytes: int) -> int:
    """CRC32C of A + B.

    Args:
        first: CRC32C of A.
        second: CRC32C of B.
        second_bytes: length of B.
    """
    rest = _ZEROS[: second_bytes & (len(_ZEROS) - 1)]
    moved = _crc(rest, first) ^ _crc(rest)
    blocks, power = second_bytes >> _BLOCK_BITS, 0
    while blocks:
        if blocks & 1:
            moved = _move(_table(power), moved)
        blocks >>= 1
        power += 1
    return moved ^ second


def _move(table: _Table, checksum: int) -> int:
    lowest, low, high, highest = table
    return lowest[checksum & 255] ^ low[checksum >> 8 & 255] ^ high[checksum >> 16 & 255] ^ highest[checksum >> 24]


@cache
def _table(power: int) -> _Table:
    """What moves a checksum on by ``2 ** power`` blocks. There are as many of them as a length has bits."""
    if power == 0:
        images = [_crc(_ZEROS, 1 << bit) ^ _crc(_ZEROS) for bit in range(32)]
    else:
        half = _table(power - 1)
        images = [_move(half, _move(half, 1 << bit)) for bit in range(32)]
    lowest, low, high, highest = (_combinations(images[start : start + 8]) for start in range(0, 32, 8))
    return lowest, low, high, highest


def _combinations(images: list[int]) -> list[int]:
    """The image of each byte, from those of its eight bits."""
    found = [0]
    for image in images:
        found += [image ^ other for other in found]
    return found
