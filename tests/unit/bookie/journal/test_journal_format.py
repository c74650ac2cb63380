"""Journal bytes: what is read back, and how a torn tail, old content and damage are told apart."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.journal.format import (
    RECORD_HEADER_BYTES,
    JournalFileHeader,
    Kind,
    batch_bytes,
    decode_fence,
    decode_lac,
    encode_batch,
    encode_empty_file,
    encode_fence,
    encode_file_header,
    encode_lac,
)
from heliograph.actors.bookie.journal.scan import JournalBatch, scan_bytes
from heliograph.actors.errors import JournalCorruptError
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES
from tests.examples import examples
from tests.hostile_bytes import mixture

FILE_BYTES = 64 << 10
TAG = b"\xa5\x5a\0\0\0\0\0\0"  # with the id of the file at its end


def scan_file(data: bytes, file_id: int, name: str) -> tuple[JournalFileHeader | None, list[JournalBatch]]:
    header, found = scan_bytes(data, file_id, name, has_header=True)
    batches = list(found)
    return header, batches


class Writer:
    """A journal file in memory, over the content of an earlier one."""

    def __init__(self, file_id: int, first_sequence: int = 1, old: bytes = bytes(FILE_BYTES)) -> None:
        self.file_id = file_id
        self.content = bytearray(old)
        self.sequence = first_sequence
        self.batch = 1
        self.tag = TAG[:-1] + bytes([file_id])
        self.content[:BLOCK_BYTES] = encode_file_header(file_id, self.tag, len(self.content))
        self.offset = BLOCK_BYTES
        self.ends: list[int] = []

    def add(self, *payloads: bytes) -> int:
        """Append one batch; returns its offset."""
        start = self.offset
        records = [(Kind.ENTRY, payload) for payload in payloads]
        data = bytearray(batch_bytes(records))
        end, next_sequence = encode_batch(data, 0, records, self.tag, self.sequence, self.batch)
        assert end == len(data)
        self.content[start : start + len(data)] = data
        self.sequence, self.batch, self.offset = next_sequence, self.batch + 1, start + len(data)
        self.ends.append(self.offset)
        return start

    def read(self) -> list[list[bytes]]:
        _, batches = scan_file(bytes(self.content), self.file_id, "test.journal")
        return [[bytes(record.payload) for record in batch.records] for batch in batches]


def test_batches_are_read_back_in_order() -> None:
    writer = Writer(7, first_sequence=100)
    writer.add(b"a", b"b" * 5000)
    writer.add(b"")
    header, batches = scan_file(bytes(writer.content), 7, "x")
    assert header is not None
    assert (header.version, header.file_id, header.first_sequence) == (2, 7, None)
    assert [[bytes(r.payload) for r in b.records] for b in batches] == [[b"a", b"b" * 5000], [b""]]
    assert [batch.next_sequence for batch in batches] == [103, 105], "END takes a number too"
    assert batches[-1].end == writer.offset
    assert all(end % BLOCK_BYTES == 0 for end in writer.ends)


def test_old_content_of_a_recycled_file_is_not_seen() -> None:
    old = Writer(3)
    for number in range(6):
        old.add(b"old%d" % number)
    new = Writer(4, first_sequence=old.sequence, old=bytes(old.content))
    new.add(b"new")
    assert new.read() == [[b"new"]]


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 30), batches=st.integers(0, 4), is_torn=st.booleans())
def test_old_content_that_looks_like_a_journal_is_not_seen(seed: int, batches: int, is_torn: bool) -> None:  # I19
    """All that a client can know of the file is its id and its counters."""
    chance = random.Random(seed)
    pad = bytes(RECORD_HEADER_BYTES + ENTRY_HEADER_BYTES)
    writer = Writer(4, old=(pad + mixture(chance, FILE_BYTES, (4, 4, 0, *range(9))))[:FILE_BYTES])
    sent = [[chance.randbytes(chance.randrange(6_000))] for _ in range(batches)]
    for payloads in sent:
        writer.add(*payloads)
    if is_torn:
        before = bytes(writer.content)
        start = writer.add(bytes(9_000))
        writer.content[start : start + BLOCK_BYTES] = before[start : start + BLOCK_BYTES]
    assert writer.read() == sent


@pytest.mark.parametrize("old_batches", [0, 5])
def test_a_torn_last_batch_does_not_count_however_it_is_torn(old_batches: int) -> None:
    """Every subset of the blocks of the last batch may have reached the disk."""
    old = Writer(3)
    for number in range(old_batches):
        old.add(b"old%d" % number)
    writer = Writer(4, old=bytes(old.content))
    writer.add(b"safe")
    before = bytes(writer.content)
    start = writer.add(b"x" * 3000, b"y" * 3000, b"z" * 3000)
    whole, end = bytes(writer.content), writer.offset
    blocks = range(start, end, BLOCK_BYTES)
    for subset in range(1 << len(blocks)):
        content = bytearray(before)
        for bit, offset in enumerate(blocks):
            if subset >> bit & 1:
                content[offset : offset + BLOCK_BYTES] = whole[offset : offset + BLOCK_BYTES]
        writer.content = content
        is_whole = subset == (1 << len(blocks)) - 1
        assert writer.read() == ([[b"safe"], [b"x" * 3000, b"y" * 3000, b"z" * 3000]] if is_whole else [[b"safe"]])


def test_a_torn_first_batch_leaves_an_empty_file() -> None:
    writer = Writer(4)
    writer.add(b"x" * 6000)
    writer.content[BLOCK_BYTES : 2 * BLOCK_BYTES] = bytes(BLOCK_BYTES)
    assert writer.read() == []


def test_damage_before_the_end_names_file_and_offset() -> None:  # D6
    writer = Writer(4)
    writer.add(b"one")
    start = writer.add(b"two")
    writer.add(b"three")
    writer.content[start + 40] ^= 0x10
    with pytest.raises(JournalCorruptError, match=rf"test\.journal: damaged at offset {start} "):
        writer.read()


@pytest.mark.parametrize("batches", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 9, 20, 26, 33, 2_000])
def test_a_damaged_header_is_damage(at: int, batches: int) -> None:  # I1
    writer = Writer(4)
    for _ in range(batches):
        writer.add(b"one")
    writer.content[at] ^= 1
    with pytest.raises(JournalCorruptError, match="offset 0"):
        writer.read()


def test_the_header_of_another_use_of_the_file_is_damage() -> None:  # I1, I19
    writer = Writer(4)
    writer.add(b"one")
    writer.content[:BLOCK_BYTES] = encode_file_header(3, TAG, len(writer.content))
    with pytest.raises(JournalCorruptError, match="offset 0"):
        writer.read()


def test_an_empty_file_for_older_releases_is_read() -> None:
    header, batches = scan_file(encode_empty_file(9), 9, "x")
    assert header is not None
    assert (header.version, header.file_id, batches) == (1, 9, [])


def test_another_format_version_is_refused() -> None:
    writer = Writer(4)
    writer.add(b"one")
    header = bytearray(writer.content[:BLOCK_BYTES])
    header[8:16] = b"\0\0\0\3" + bytes(4)
    import crc32c

    header[12:16] = crc32c.crc32c(bytes(header)).to_bytes(4, "big")
    writer.content[:BLOCK_BYTES] = header
    with pytest.raises(JournalCorruptError, match="format 3"):
        writer.read()


def test_small_records() -> None:
    assert decode_fence(encode_fence(1 << 40)) == 1 << 40
    assert decode_lac(encode_lac(5, 1 << 33)) == (5, 1 << 33)


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(st.lists(st.binary(max_size=2000), min_size=1, max_size=5), min_size=1, max_size=6),
    seed=st.integers(0, 1 << 30),
    flips=st.integers(1, 4),
)
def test_flipped_bits_never_give_wrong_records(batches: list[list[bytes]], seed: int, flips: int) -> None:
    """A prefix of the batches, or an error; and a loss only of the last batch."""
    writer = Writer(9)
    for batch in batches:
        writer.add(*batch)
    chance = random.Random(seed)
    for _ in range(flips):
        at = chance.randrange(writer.offset)
        writer.content[at] ^= 1 << chance.randrange(8)
    try:
        found = writer.read()
    except JournalCorruptError:
        return
    assert found == batches[: len(found)]
    assert len(found) >= len(batches) - 1, "damage further in must be seen"


@settings(max_examples=examples(100), deadline=None)
@given(content=st.binary(max_size=3 * BLOCK_BYTES), has_header=st.booleans())
def test_any_bytes_are_scanned_without_harm(content: bytes, has_header: bool) -> None:
    if has_header:
        assert scan_file(encode_file_header(1, TAG, 0) + content, 1, "x")[1] == []
        return
    with pytest.raises(JournalCorruptError, match=r"cut off|offset 0"):
        scan_file(content, 1, "x")
    if len(content) >= BLOCK_BYTES:
        header, found = scan_bytes(content, 1, "x")  # an older release may have made it ready
        assert (header, list(found)) == (None, [])


@pytest.mark.parametrize("size", [0, 100, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES, FILE_BYTES - 1])
def test_a_file_that_was_cut_off_is_damage(size: int) -> None:  # D6
    writer = Writer(7)
    for number in range(4):
        writer.add(b"%d" % number)
    with pytest.raises(JournalCorruptError, match=rf"x: damaged at offset {size}, where the file was cut off"):
        scan_file(bytes(writer.content[:size]), 7, "x")


def test_a_spare_that_was_shorter_than_its_earlier_use_is_no_damage() -> None:
    """A large batch made the file longer, it was cut off as an entry log, and an older release made it ready again."""
    earlier = encode_file_header(7, TAG, FILE_BYTES)
    header, batches = scan_bytes(earlier + bytes(FILE_BYTES - 2 * BLOCK_BYTES), 8, "x")
    assert header is None
    assert list(batches) == []
    with pytest.raises(JournalCorruptError, match="cut off"):
        scan_bytes(earlier + bytes(FILE_BYTES - 2 * BLOCK_BYTES), 7, "x")
