"""The hash functions that clients and brokers must agree on."""

from __future__ import annotations

import functools

import mmh3

KEY_HASH_RANGE = 65536  # hashes of a Key_Shared subscription
_POSITIVE = 0x7FFFFFFF
_CACHED_KEYS = 65_536  # keys repeat, and the loop below is slow


@functools.lru_cache(maxsize=_CACHED_KEYS)
def java_string_hash(key: str) -> int:
    """Return Java's ``String.hashCode`` made non-negative, which chooses the partition of a key by default."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8) + units[index + 1]) & 0xFFFFFFFF
    return value & _POSITIVE


def murmur3_hash(key: bytes | str) -> int:
    """Return the 32-bit Murmur3 hash with seed 0, made non-negative."""
    return int(mmh3.hash(key, 0, False)) & _POSITIVE


def sticky_key_hash(key: bytes) -> int:
    """Return the hash of a key in a Key_Shared subscription, 1..65535. 0 is reserved and becomes 1."""
    return mmh3.hash(key, 0, False) & KEY_HASH_RANGE - 1 or 1  # of ``murmur3_hash``, whose range is a multiple
