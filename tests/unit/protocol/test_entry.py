"""Entries and batches: headers equal protobuf's encoding, damage is detected, and messages come back unchanged."""

from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import ChecksumError, ProtocolError, UnsupportedError
from heliograph.protocol import batch, compression, entry
from heliograph.protocol import pulsar_pb2 as pb

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CODECS = list(compression.NAMES.values())
PAYLOADS = st.lists(st.binary(max_size=300), min_size=1, max_size=20)


def metadata(**values: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1000, **values)  # type: ignore[arg-type]


def unpack(section: bytes) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    entry.verify(section)
    parsed, payload = entry.split(section)
    return list(entry.iterate_batch(parsed, entry.plain_payload(parsed, payload)))


@given(st.integers(0, 1 << 40), TEXT | st.none(), st.dictionaries(TEXT, TEXT, max_size=3), st.integers(0, 1 << 62))
def test_heads_equal_protobufs_packing(size: int, key: str | None, pairs: dict[str, str], time: int) -> None:
    size &= 0x7FFFFFFF
    single = pb.SingleMessageMetadata(payload_size=size, partition_key=key)
    assert (batch.plain_head(size) if key is None else batch.keyed_head(key, size)) == framed(single)
    single.properties.extend(pb.KeyValue(key=name, value=value) for name, value in pairs.items())
    single.event_time = time
    assert batch.full_head(size, key, pairs, time) == framed(single)


def framed(single: pb.SingleMessageMetadata) -> bytes:
    packed = single.SerializeToString()
    return struct.pack(">I", len(packed)) + packed


@given(PAYLOADS, st.booleans(), st.sampled_from(CODECS))
def test_a_batch_comes_back(payloads: list[bytes], keyed: bool, codec: pb.CompressionType) -> None:
    keys: list[str | None] | None = [f"k{index}" if index % 2 else None for index in range(len(payloads))]
    section = batch.encode_batch(metadata(), batch.heads_of(payloads, keys if keyed else None), payloads, codec)
    got = unpack(section)
    assert [value for _, value in got] == payloads
    if keyed:
        assert [single.partition_key or None for single, _ in got] == keys
    parsed = entry.metadata_of(section)
    assert parsed.num_messages_in_batch == len(payloads)
    assert parsed.compression in (codec, pb.NONE)
    assert entry.is_batch(parsed)


def test_a_single_message_carries_its_head_in_the_metadata() -> None:
    head = batch.full_head(5, "key", {"a": "b"}, 99)
    section = batch.encode_single(metadata(), head, b"hello")
    entry.verify(section)
    parsed, payload = entry.split(section)
    assert not entry.is_batch(parsed)
    assert entry.message_count(parsed) == 1
    assert (parsed.partition_key, parsed.event_time, parsed.properties[0].value) == ("key", 99, "b")
    assert entry.plain_payload(parsed, payload) == b"hello"


def test_the_entry_that_a_broker_publishes_by_itself() -> None:
    section = batch.encode_entry_of("p", 10, 5, [b"a", b"b"], ["x", None])
    parsed = entry.metadata_of(section)
    assert (parsed.sequence_id, parsed.highest_sequence_id, entry.message_count(parsed)) == (10, 11, 2)
    assert [value for _, value in unpack(section)] == [b"a", b"b"]


def test_every_flipped_bit_behind_the_checksum_is_seen() -> None:
    section = batch.encode_entry_of("p", 0, 5, [b"abc"])
    for position in range(2, len(section)):
        damaged = bytearray(section)
        damaged[position] ^= 0x10
        with pytest.raises(ChecksumError):
            entry.verify(bytes(damaged))


def test_an_entry_without_magic_is_read_unchecked() -> None:
    section = batch.encode_entry_of("p", 3, 5, [b"abc"])[6:]
    entry.verify(section)
    assert entry.metadata_of(section).sequence_id == 3


@given(st.binary(max_size=200))
def test_garbage_is_a_typed_error(garbage: bytes) -> None:
    for section in (garbage, b"\x0e\x01" + garbage):
        try:
            parsed, payload = entry.split(section)
            list(entry.iterate_batch(parsed, entry.plain_payload(parsed, payload)))
        except (ProtocolError, ChecksumError, UnsupportedError):
            pass


def test_a_batch_that_promises_too_much_is_a_typed_error() -> None:
    parsed = metadata(num_messages_in_batch=3)
    with pytest.raises(ProtocolError):
        list(entry.iterate_batch(parsed, batch.plain_head(3) + b"abc"))
    parsed.num_messages_in_batch = 1
    with pytest.raises(ProtocolError):
        list(entry.iterate_batch(parsed, batch.plain_head(4) + b"abc"))


@pytest.mark.parametrize("codec", CODECS[1:], ids=pb.CompressionType.Name)
def test_compressed_data_of_another_size_is_refused(codec: pb.CompressionType) -> None:
    packed = compression.compress(codec, bytes(1000))
    assert len(packed) < 100
    assert compression.decompress(codec, memoryview(packed), 1000) == bytes(1000)
    for size in (0, 10, 999, 1001):
        with pytest.raises(ChecksumError):
            compression.decompress(codec, packed, size)
    for damaged in (b"", b"not compressed", packed[: len(packed) // 2], b"\xff" * 40):
        with pytest.raises(ChecksumError):
            compression.decompress(codec, damaged, 1000)
    with pytest.raises(UnsupportedError):  # I15
        compression.decompress(codec, packed, compression.UNCOMPRESSED_BYTES_MAX + 1)


@pytest.mark.parametrize("codec", CODECS, ids=pb.CompressionType.Name)
def test_nothing_is_compressed_and_comes_back(codec: pb.CompressionType) -> None:
    assert compression.decompress(codec, compression.compress(codec, b""), 0) == b""
    assert compression.decompress(codec, b"", 0) == b""


@pytest.mark.parametrize("codec", CODECS[1:], ids=pb.CompressionType.Name)
def test_a_bomb_costs_no_more_than_it_declares(codec: pb.CompressionType) -> None:
    """I15."""
    bomb = compression.compress(codec, bytes(50 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ChecksumError):
            compression.decompress(codec, bomb, 1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300), st.integers(0, 2000), st.sampled_from(CODECS[1:]))
def test_decompressing_garbage_is_a_typed_error(garbage: bytes, size: int, codec: pb.CompressionType) -> None:
    with contextlib.suppress(ChecksumError):
        assert len(compression.decompress(codec, garbage, size)) == size


def test_what_does_not_become_smaller_is_not_compressed() -> None:
    """Otherwise a message of the largest size might not fit the broker's limit."""
    payload = os.urandom(1000)
    section = batch.encode_single(metadata(), batch.plain_head(len(payload)), payload, pb.LZ4)
    parsed, stored = entry.split(section)
    assert (parsed.compression, bytes(stored)) == (pb.NONE, payload)


def test_an_unknown_codec_is_refused_and_not_read_as_none() -> None:
    packed = metadata(compression=pb.LZ4).SerializeToString()
    assert packed.endswith(bytes([pb.LZ4]))
    parsed = pb.MessageMetadata.FromString(packed[:-1] + b"\x2a")
    with pytest.raises(UnsupportedError, match="42"):
        entry.plain_payload(parsed, b"x")
    for unknown in (7, 42):
        with pytest.raises(UnsupportedError):
            compression.decompress(unknown, b"x", 1)
        with pytest.raises(UnsupportedError):
            compression.compress(unknown, b"x")


@pytest.mark.parametrize(("time", "index"), [(None, None), (1_700_000_000_000, None), (None, 0), (1, (1 << 63) - 1)])
def test_broker_metadata_in_front_changes_nothing_else(time: int | None, index: int | None) -> None:
    plain = batch.encode_entry_of("p", 3, 5, [b"a", b"b"])
    noted = pb.BrokerEntryMetadata(broker_timestamp=time, index=index)
    block = entry.encode_broker_metadata(noted)
    assert block == b"\x0e\x02" + framed_bytes(noted.SerializeToString())
    assert len(block) <= entry.BROKER_METADATA_BYTES_MAX
    for section in (block + plain, memoryview(block + plain), block + plain[6:]):  # also without magic and checksum
        assert entry.broker_metadata_size(section) == len(block)
        assert entry.broker_metadata_of(section) == noted
        assert entry.metadata_of(section) == entry.metadata_of(plain)
        assert unpack(bytes(section)) == unpack(plain)
        found = entry.received(memoryview(section))
        assert found == (*entry.split(section), noted)
    assert entry.broker_metadata_size(plain) == 0
    assert entry.received(memoryview(plain)) == (*entry.split(plain), entry.NO_BROKER_METADATA)
    assert entry.broker_metadata_of(plain) is entry.NO_BROKER_METADATA


def framed_bytes(packed: bytes) -> bytes:
    return struct.pack(">I", len(packed)) + packed


def test_damage_behind_broker_metadata_is_seen_and_a_cut_block_is_a_typed_error() -> None:
    plain = batch.encode_entry_of("p", 0, 5, [b"abc"])
    block = entry.encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=5, index=9))
    with pytest.raises(ChecksumError):
        entry.verify(block + plain[:-1] + b"?")
    for damaged in (plain[:-1] + b"?", block + plain[:-1] + b"?"):
        with pytest.raises(ChecksumError):
            entry.received(memoryview(damaged))
    with pytest.raises(ProtocolError):
        entry.received(memoryview(plain[:9]))
    for section in (block[:3], block[:-1], b"\x0e\x02\xff\xff\xff\xff" + plain):
        for read in (entry.verify, entry.split, entry.broker_metadata_of, entry.broker_metadata_size):
            with pytest.raises(ProtocolError):
                read(section)
        with pytest.raises(ProtocolError):
            entry.received(memoryview(section))
    with pytest.raises(ProtocolError):
        entry.broker_metadata_of(b"\x0e\x02\x00\x00\x00\x01\xff" + plain)


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=9)), min_size=1, max_size=40), st.integers(0, 1 << 42))
def test_some_messages_of_a_batch_are_those_of_all(messages: list[tuple[bool, bytes]], wanted: int) -> None:
    plain = b"".join(entry.EMPTIED if is_out else batch.plain_head(len(value)) + value for is_out, value in messages)
    metadata = pb.MessageMetadata(num_messages_in_batch=len(messages))
    every = list(enumerate(entry.iterate_batch(metadata, plain)))
    assert list(entry.iterate_some(metadata, plain, wanted)) == [one for one in every if wanted >> one[0] & 1]
    with pytest.raises(ProtocolError):
        list(entry.iterate_some(metadata, plain[:-1], 1 << len(messages) - 1))
