"""Checksums of joined data, from those of its pieces."""

from __future__ import annotations

import crc32c
from hypothesis import given
from hypothesis import strategies as st

from actors.wire.checksums import joined
from actors.wire.entry import checksum_with_entry, encode_entry

lengths = st.integers(0, 9000) | st.integers(0, 1 << 20) | st.sampled_from([4095, 4096, 4097, 131_072, (5 << 20) + 40])


@given(first=st.binary(max_size=50), seed=st.binary(min_size=1, max_size=20), length=lengths)
def test_the_checksum_of_two_pieces_is_that_of_them_in_a_row(first: bytes, seed: bytes, length: int) -> None:
    second = (seed * (length // len(seed) + 1))[:length]
    assert joined(crc32c.crc32c(first), crc32c.crc32c(second), length) == crc32c.crc32c(first + second)


@given(before=st.binary(max_size=50), payload=st.binary(max_size=9000))
def test_an_entry_s_own_checksum_says_what_it_adds_to_another(before: bytes, payload: bytes) -> None:
    entry = encode_entry(3, 4, 3, len(payload), payload)
    for data in (entry, memoryview(b"x" + entry)[1:]):
        assert checksum_with_entry(crc32c.crc32c(before), data) == crc32c.crc32c(before + entry)
