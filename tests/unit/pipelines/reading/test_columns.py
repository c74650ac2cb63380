"""Entries as rows: every column, for batches, single messages and special cases."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from heliograph.base.errors import BadRequestError, ChecksumError
from heliograph.pipelines.reading import columns
from heliograph.pipelines.reading.columns import ALL_COLUMNS, Rows, check_columns
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_entry_of, full_head, heads_of
from heliograph.protocol.entry import encode_entry
from heliograph.protocol.message_id import MessageId

TOPIC = "persistent://public/default/t-partition-2"


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1_700_000_000_123, **fields)


def rows_of(*entries: bytes, wanted: tuple[str, ...] = ALL_COLUMNS) -> list[dict[str, Any]]:
    rows = Rows(wanted)
    for entry_id, payload in enumerate(entries):
        rows.add_entry(TOPIC, 2, 9, entry_id, payload)
    found: list[dict[str, Any]] = rows.take().to_pylist()
    return found


def test_a_batch_becomes_a_row_a_message() -> None:
    heads = [full_head(1, "k", {"a": "1", "b": "2"}, 1_600_000_000_000), full_head(2, None, None, None)]
    first, second = rows_of(encode_batch(metadata(), heads, [b"x", b"yz"]))
    assert first == {
        "value": b"x",
        "__key": b"k",
        "__topic": TOPIC,
        "__messageId": MessageId(9, 0, 2, 0, 2).to_bytes(),
        "__publishTime": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        "__eventTime": datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC),
        "__messageProperties": [("a", "1"), ("b", "2")],
    }
    assert second["value"] == b"yz"
    assert second["__key"] is None
    assert second["__eventTime"] is None
    assert second["__messageProperties"] == []
    assert MessageId.from_bytes(second["__messageId"]) == MessageId(9, 0, 2, 1)


def test_a_single_message_becomes_a_row() -> None:
    properties = [pb.KeyValue(key="a", value="1")]
    single = encode_entry(metadata(partition_key="k", properties=properties, event_time=1_600_000_000_000), b"x")
    (row,) = rows_of(single)
    assert row["value"] == b"x"
    assert row["__key"] == b"k"
    assert row["__messageId"] == MessageId(9, 0, 2).to_bytes()
    assert row["__messageProperties"] == [("a", "1")]


def test_times_that_no_table_can_hold_become_the_nearest_that_it_can() -> None:
    """Any producer may send such a time, for example nanoseconds instead of milliseconds."""
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    single = metadata(event_time=1_700_000_000_123_000_000)
    single.publish_time = (1 << 64) - 1
    batch = encode_batch(metadata(), [full_head(1, None, None, (1 << 63) - 1)], [b"x"])
    for row in rows_of(encode_entry(single, b"x"), batch):
        assert row["__eventTime"] == last
    assert rows_of(encode_entry(single, b"x"))[0]["__publishTime"] == last


def test_compressed_batches_and_binary_keys() -> None:
    payloads = [b"some text " * 50] * 3
    for codec in (pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY):
        entry = encode_batch(metadata(), heads_of(payloads, None), payloads, codec)
        assert len(entry) < 300
        assert [row["value"] for row in rows_of(entry)] == payloads
    key = base64.b64encode(b"\x00\xff").decode()
    (row,) = rows_of(encode_entry(metadata(partition_key=key, partition_key_b64_encoded=True), b"x"))
    assert row["__key"] == b"\x00\xff"


def test_texts_that_are_not_utf8_are_rows_nevertheless() -> None:
    packed = metadata(partition_key="key?", properties=[pb.KeyValue(key="a", value="b?")]).SerializeToString()
    (row,) = rows_of(encode_entry(pb.MessageMetadata.FromString(packed.replace(b"?", b"\xff")), b"x"))
    assert row["__key"] == b"key\xff"
    assert row["__messageProperties"] == [("a", "b\ufffd")]


def test_null_values_are_null_and_compacted_messages_are_gone() -> None:
    (row,) = rows_of(encode_entry(metadata(null_value=True), b""))
    assert row["value"] is None
    single = pb.SingleMessageMetadata(payload_size=1, compacted_out=True).SerializeToString()
    heads = [len(single).to_bytes(4, "big") + single, full_head(1, None, None, None)]
    (row,) = rows_of(encode_batch(metadata(), heads, [b"x", b"y"]))
    assert row["value"] == b"y"
    assert MessageId.from_bytes(row["__messageId"]).batch_index == 1


def test_entries_of_brokers_themselves_hold_no_rows() -> None:
    assert rows_of(encode_entry(metadata(marker_type=1), b"x")) == []


def test_only_wanted_columns_are_built() -> None:
    entry = encode_entry_of("p", 0, 1, [b"x", b"y"], ["a", None])
    assert rows_of(entry, wanted=("__key", "value")) == [{"__key": b"a", "value": b"x"}, {"__key": None, "value": b"y"}]
    with pytest.raises(BadRequestError, match="nonsense"):
        check_columns(["value", "nonsense"])
    with pytest.raises(BadRequestError):
        check_columns([])
    assert check_columns(None) == ALL_COLUMNS
    assert check_columns(None, "null") == (*ALL_COLUMNS, "__error")
    with pytest.raises(BadRequestError, match="perhaps"):
        check_columns(None, "perhaps")


def test_a_damaged_entry_is_refused() -> None:
    entry = bytearray(encode_entry_of("p", 0, 1, [b"x"]))
    entry[-1] ^= 1
    with pytest.raises(ChecksumError):
        rows_of(bytes(entry))


def test_batches_are_bounded_and_start_anew() -> None:
    rows = Rows(("value",))
    entry = encode_entry_of("p", 0, 1, [b"x" * 1024] * 1024)
    for entry_id in range(columns.BATCH_BYTES_MAX >> 20):
        assert not rows.is_full
        rows.add_entry(TOPIC, 2, 9, entry_id, entry)
    assert rows.is_full  # I15
    batch = rows.take()
    assert batch.num_rows == columns.BATCH_BYTES_MAX >> 10
    assert batch.schema == pa.schema([pa.field("value", pa.binary())])
    assert rows.count == 0
    assert rows.take().num_rows == 0
