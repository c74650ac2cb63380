"""Checksums of records whose payloads were checked before: the same as those that read every byte."""

from __future__ import annotations

import random

import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heliograph.actors.bookie.config import ENTRY_BYTES_MAX
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.journal.checksums import combined_checksum
from heliograph.actors.bookie.journal.format import Kind, batch_bytes, encode_batch, encode_file_header
from heliograph.actors.bookie.journal.scan import scan_bytes
from heliograph.actors.wire.entry import ENTRY_CHECKED_FROM, encode_entry
from tests.examples import examples

RANDOM = random.Random(20).randbytes(ENTRY_BYTES_MAX)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 3_000), st.integers(0, 300_000) | st.integers(0, 80).map(lambda blocks: blocks * BLOCK_BYTES))
@example(0, 0)
@example(36, ENTRY_BYTES_MAX)
@example(36, BLOCK_BYTES - 1)
@example(36, BLOCK_BYTES)
def test_two_checksums_make_the_one_of_both_pieces(first: int, size: int) -> None:
    head, rest = RANDOM[size // 2 : size // 2 + first], RANDOM[:size]
    assert combined_checksum(crc32c.crc32c(head), crc32c.crc32c(rest), size) == crc32c.crc32c(head + rest)


TAG = b"\xff" * 8


def encoded(entries: list[bytes]) -> bytes:
    records = [(Kind.ENTRY, entry) for entry in entries]
    data = bytearray(batch_bytes(records))
    encode_batch(data, 0, records, TAG, 100, 1)
    return encode_file_header(7, TAG, 0) + bytes(data)


def test_large_entries_have_the_checksums_of_their_bytes() -> None:
    sizes = (0, 1_000, 20_000, 32_000, 32_768, 40_001, 131_072, 2_000_003)
    entries = [encode_entry(1, number, number - 1, number, RANDOM[:size]) for number, size in enumerate(sizes)]
    header, batches = scan_bytes(encoded(entries), 7, "test.journal")
    assert header is not None
    assert [[bytes(record.payload) for record in batch.records] for batch in batches] == [entries]


def test_an_entry_that_is_damaged_after_its_check_makes_no_sound_record() -> None:
    entry = encode_entry(1, 5, 4, 5, RANDOM[:100_000])
    for place in (4, ENTRY_CHECKED_FROM, 50_000, len(entry) - 1):
        damaged = bytearray(entry)
        damaged[place] ^= 0x10
        _, batches = scan_bytes(encoded([bytes(damaged)]), 7, "test.journal")
        assert list(batches) == [], f"byte {place}"
