"""Entries out of the ordinary as rows: chunks, encrypted and delayed messages, foreign keys, and damaged ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from heliograph.base.errors import ChecksumError, HeliographError, ProtocolError, UnsupportedError
from heliograph.pipelines.reading.columns import EVERY_COLUMN, OnUnreadable, Rows
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_chunks, encode_entry_of, plain_head
from heliograph.protocol.compression import compress
from heliograph.protocol.entry import encode_entry
from tests.unit.pipelines.reading.test_columns import TOPIC, metadata, rows_of

LEDGER = 9
BODY = b"a long message " * 100


def chunks_of(uuid: str = "u", body: bytes = BODY, count: int = 3, codec: pb.CompressionType = pb.NONE) -> list[bytes]:
    packed = compress(codec, body)
    size = -(-len(packed) // count)
    shared: dict[str, Any] = {
        "uuid": uuid,
        "num_chunks_from_msg": count,
        "total_chunk_msg_size": len(packed),
        "compression": codec,
        "uncompressed_size": len(body),
        "partition_key": "k",
    }
    return [
        encode_entry(metadata(chunk_id=index, **shared), packed[index * size : (index + 1) * size])
        for index in range(count)
    ]


def values_of(entries: Sequence[bytes], first: int = 0, on_unreadable: OnUnreadable = "fail") -> list[bytes | None]:
    """Return the values of a task that reads ``entries`` from ``first`` on."""
    rows = Rows(("value",), on_unreadable)

    def earlier(entry_id: int) -> Iterator[tuple[tuple[int, int], bytes]]:
        return (((LEDGER, index), entries[index]) for index in range(entry_id - 1, -1, -1))

    for entry_id in range(first, len(entries)):
        rows.add_entry(TOPIC, 2, LEDGER, entry_id, entries[entry_id], earlier)
    found: list[bytes | None] = rows.take().column(0).to_pylist()
    return found


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_chunks_become_one_row_where_the_last_one_is(codec: pb.CompressionType) -> None:
    (row,) = rows_of(*chunks_of(codec=codec))
    assert (row["value"], row["__key"]) == (BODY, b"k")
    message_id = pb.MessageIdData.FromString(row["__messageId"])
    assert (message_id.ledger_id, message_id.entry_id, message_id.partition) == (LEDGER, 2, 2)
    assert (message_id.first_chunk_message_id.ledger_id, message_id.first_chunk_message_id.entry_id) == (LEDGER, 0)


def test_messages_in_chunks_may_be_mixed_and_chunks_sent_twice() -> None:
    (a0, a1, a2), (b0, b1) = chunks_of("a", b"aaa"), chunks_of("b", b"bb", 2)
    plain = encode_entry_of("p", 0, 1, [b"x"])
    assert values_of([a0, b0, plain, a1, b1, a2]) == [b"x", b"bb", b"aaa"]
    assert values_of([a0, a1, a0, a1, a1, a2]) == [b"aaa"]
    assert values_of([a0, a1, b0]) == []  # the producer never sent the rest


@pytest.mark.parametrize("codec", [pb.NONE, pb.ZSTD])
def test_chunks_of_own_producers_are_read_and_orphans_make_no_row(codec: pb.CompressionType) -> None:
    def chunks(sequence_id: int) -> list[bytes]:
        own = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
        return encode_chunks(own, plain_head(len(BODY)), BODY, codec, 5)

    dead, other, whole, plain = chunks(0)[:-1], chunks(7)[1:-1], chunks(0), encode_entry_of("p", 0, 1, [b"x"])
    assert len(whole) > 2
    # A producer died within its message. It has no deduplication, so the next one under its name begins at 0 again.
    assert values_of([*dead, plain, *whole, *other, *dead]) == [b"x", BODY]
    assert values_of([*other, *dead, *dead, plain], on_unreadable="fail") == [b"x"]


@pytest.mark.parametrize("first", range(6))
def test_a_message_that_begins_before_the_range_belongs_to_the_task_of_its_last_chunk(first: int) -> None:
    (a0, a1, a2), (b0, b1) = chunks_of("a", b"aaa"), chunks_of("b", b"bb", 2)
    entries = [a0, b0, a1, a1, b1, a2]
    every = values_of(entries)
    assert values_of(entries[:first]) + values_of(entries, first) == every


def test_an_incomplete_message_is_told() -> None:
    _, second, third = chunks_of()
    with pytest.raises(UnsupportedError, match=r"9:1 .* earlier chunks"):
        values_of([second, third])
    assert values_of([second, third], on_unreadable="skip") == []
    assert values_of([second, third], on_unreadable="null") == [None]


def test_an_encrypted_message_is_passed_through_with_its_keys() -> None:
    keys = [pb.EncryptionKeys(key="mine", value=b"sealed")]
    encrypted = encode_entry(
        metadata(encryption_keys=keys, encryption_param=b"iv", num_messages_in_batch=3, compression=pb.LZ4), b"cipher"
    )
    (row,) = rows_of(encrypted, wanted=("value", "__encryption"))
    assert row["value"] == b"cipher"
    found = pb.MessageMetadata.FromString(row["__encryption"])
    assert (found.encryption_keys[0].key, found.encryption_param, found.num_messages_in_batch) == ("mine", b"iv", 3)


def test_the_other_columns() -> None:
    single = metadata(ordering_key=b"\x00o", deliver_at_time=1_600_000_000_000)
    single.sequence_id = 17
    (row,) = rows_of(encode_entry(single, b"x"), wanted=EVERY_COLUMN)
    assert row["__orderingKey"] == b"\x00o"
    assert row["__deliverAt"] == datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)
    assert (row["__producerName"], row["__sequenceId"], row["__error"], row["__encryption"]) == ("p", 17, None, None)
    head = pb.SingleMessageMetadata(payload_size=1, ordering_key=b"b").SerializeToString()
    heads = [len(head).to_bytes(4, "big") + head] * 2
    batch = rows_of(encode_batch(single, heads, [b"x", b"y"]), wanted=EVERY_COLUMN)
    assert [(row["__orderingKey"], row["__sequenceId"]) for row in batch] == [(b"b", 17), (b"b", 18)]


def test_a_key_that_is_not_the_base64_that_it_claims_to_be_stays_as_it_is() -> None:
    (row,) = rows_of(encode_entry(metadata(partition_key="no base64!", partition_key_b64_encoded=True), b"x"))
    assert row["__key"] == b"no base64!"


def unreadable() -> Iterable[tuple[bytes, type[HeliographError]]]:
    damaged = bytearray(encode_entry_of("p", 0, 1, [b"x"]))
    damaged[-1] ^= 1
    yield bytes(damaged), ChecksumError
    yield b"\x0e\x01\x00", ProtocolError
    yield encode_entry(metadata(num_messages_in_batch=3), b"\x00\x00\x00\x02\x18\x01x"), ProtocolError
    yield encode_entry(metadata(compression=77, uncompressed_size=1), b"x"), UnsupportedError
    yield encode_entry(metadata(compression=pb.LZ4, uncompressed_size=5), b"no lz4"), ChecksumError


@pytest.mark.parametrize(("entry", "kind"), list(unreadable()))
def test_what_cannot_be_read_is_refused_or_left_out_or_null_with_the_reason(
    entry: bytes, kind: type[HeliographError]
) -> None:
    good = encode_entry_of("p", 0, 1, [b"good"])
    with pytest.raises(kind, match="entry 9:1 of"):
        values_of([good, entry])
    assert values_of([good, entry, good], on_unreadable="skip") == [b"good", b"good"]
    rows = Rows(("value", "__error", "__key", "__publishTime"), "null")
    for entry_id, payload in enumerate((good, entry, good)):
        rows.add_entry(TOPIC, 2, LEDGER, entry_id, payload)
    first, second, third = rows.take().to_pylist()
    assert [first["value"], second["value"], third["value"]] == [b"good", None, b"good"]
    assert [first["__error"], third["__error"]] == [None, None]
    assert second["__error"]
    assert (second["__key"], second["__publishTime"]) == (None, None)
    assert rows.unreadable == 1
    assert "9:1" in rows.last_error
