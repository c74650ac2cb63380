"""Ack sets: which messages of a batch are not acknowledged, as the words of a java.util.BitSet."""

from __future__ import annotations

from collections.abc import Iterable

from heliograph.protocol.message_id import to_signed

_WORD_BITS = 64
_WORD_MASK = (1 << _WORD_BITS) - 1


def bits_of(words: Iterable[int]) -> int:
    """Return an ack set as one number; bit i is set while message i is not acknowledged."""
    bits = 0
    for index, word in enumerate(words):
        bits |= (word & _WORD_MASK) << (_WORD_BITS * index)
    return bits


def words_of(bits: int) -> list[int]:
    """Return the words of an ack set, as the signed 64-bit numbers that the wire has."""
    words = []
    while bits:
        words.append(to_signed(bits & _WORD_MASK))
        bits >>= _WORD_BITS
    return words
