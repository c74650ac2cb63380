"""The checksum of two pieces of bytes from the checksums of each, without reading the bytes again. Pure.

CRC32C is linear over GF(2): to append n bytes is to multiply by x^(8n) and to add the checksum of those bytes. There is
one table for each power of two of blocks; what is not a whole block is fed as zeros.
"""

from __future__ import annotations

import functools
from array import array

import crc32c

from heliograph.actors.bookie.config import ENTRY_BYTES_MAX

_BLOCK_BYTES = 4096
_ZEROS = bytes(_BLOCK_BYTES)
_ONES = 0xFFFFFFFF
_POWERS = (ENTRY_BYTES_MAX // _BLOCK_BYTES).bit_length()  # so many tables of 4 KiB (I15)

_Table = tuple["array[int]", "array[int]", "array[int]", "array[int]"]  # by byte of the checksum, the lowest first


def combined_checksum(first: int, second: int, size: int) -> int:
    """Return the CRC32C of bytes whose beginning has checksum ``first``, and whose last ``size`` bytes ``second``.

    Args:
        size: at most an entry's.
    """
    tables, blocks = _tables(), size // _BLOCK_BYTES
    power = 0
    while blocks:
        if blocks & 1:
            low, second_byte, third_byte, high = tables[power]
            first = low[first & 255] ^ second_byte[first >> 8 & 255] ^ third_byte[first >> 16 & 255] ^ high[first >> 24]
        blocks >>= 1
        power += 1
    return _after_zeros(first, _ZEROS[: size % _BLOCK_BYTES]) ^ second


@functools.cache
def _tables() -> list[_Table]:
    """Return for each power of two the product of every byte of a checksum with x^(8 n), n being so many blocks."""
    columns = [_after_zeros(1 << bit, _ZEROS) for bit in range(32)]
    tables: list[_Table] = []
    for _ in range(_POWERS):
        rows = [_sums_of(columns[bit : bit + 8]) for bit in range(0, 32, 8)]
        low, second, third, high = rows
        tables.append((low, second, third, high))
        columns = [low[c & 255] ^ second[c >> 8 & 255] ^ third[c >> 16 & 255] ^ high[c >> 24] for c in columns]
    return tables


def _sums_of(columns: list[int]) -> array[int]:
    """Return the sum of the columns that each byte has bits for."""
    sums = array("I", bytes(4 * 256))
    for value in range(1, 256):
        lowest = value & -value
        sums[value] = sums[value ^ lowest] ^ columns[lowest.bit_length() - 1]
    return sums


def _after_zeros(checksum: int, zeros: bytes) -> int:
    """Return the product of a checksum with x^8 for each zero: the library inverts before and after."""
    return crc32c.crc32c(zeros, checksum ^ _ONES) ^ _ONES
