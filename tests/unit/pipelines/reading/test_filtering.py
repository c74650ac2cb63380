"""Rows that conditions leave and rows that are counted: the same as if all rows were made and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from heliograph.base.errors import ChecksumError, UnsupportedError
from heliograph.pipelines.planning.conditions import Given, where_of
from heliograph.pipelines.reading.columns import ALL_COLUMNS, Rows
from heliograph.pipelines.reading.counting import RowCounter
from heliograph.pipelines.reading.filtering import RowFilter
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_entry_of, full_head
from heliograph.protocol.entry import encode_entry
from tests.unit.pipelines.reading.test_columns import TOPIC, metadata
from tests.unit.pipelines.reading.test_special_entries import chunks_of

PARTITION, LEDGER = 2, 9
BASE_MS = 1_700_000_000_000


def metadata_at(second: int, **fields: Any) -> pb.MessageMetadata:
    found = metadata(**fields)
    found.publish_time = BASE_MS + second * 1000
    return found


def batch(second: int, keys: Sequence[str | None], codec: pb.CompressionType = pb.NONE) -> bytes:
    heads = [full_head(1, key, None, BASE_MS + 100 * index if index % 2 else None) for index, key in enumerate(keys)]
    return encode_batch(metadata_at(second), heads, [b"x"] * len(keys), codec)


ENTRIES = [
    encode_entry(metadata_at(0, partition_key="a", event_time=BASE_MS), b"0"),
    batch(1, ["a", "b", None]),
    encode_entry(metadata_at(2, marker_type=1), b"marker"),
    batch(3, ["c", "a", "a", "d"], pb.LZ4),
    *chunks_of(count=3),
    encode_entry(metadata_at(4, partition_key="b"), b"1"),
    encode_entry(
        metadata_at(5, encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")], num_messages_in_batch=5), b"?"
    ),
    encode_entry_of("p", 0, 1, [b"2", b"3"]),
]


def rows_of(given: Sequence[Given], columns: tuple[str, ...] = ALL_COLUMNS) -> tuple[list[dict[str, Any]], int]:
    """Return the rows that conditions leave, and how many entries were decoded."""
    where = where_of(given)
    assert where is not None
    chosen = RowFilter(where, columns)
    rows = Rows(chosen.reads)
    decoded = 0
    for entry_id, section in enumerate(ENTRIES):
        if chosen.may_have_rows(PARTITION, LEDGER, entry_id, section):
            rows.add_entry(TOPIC, PARTITION, LEDGER, entry_id, section)
            decoded += 1
    return [row for batch in chosen.batches(iter([rows.take()])) for row in batch.to_pylist()], decoded


def all_rows() -> list[dict[str, Any]]:
    rows = Rows()
    for entry_id, section in enumerate(ENTRIES):
        rows.add_entry(TOPIC, PARTITION, LEDGER, entry_id, section)
    found: list[dict[str, Any]] = rows.take().to_pylist()
    return found


def at(second: float) -> datetime:
    return datetime.fromtimestamp(BASE_MS / 1000 + second, UTC)


@pytest.mark.parametrize(
    "given",
    [
        [("__key", "==", b"a")],
        [("__key", ">", b"a"), ("__key", "<=", b"c")],
        [("__key", "in", [b"d", b"nobody"])],
        [("__key", "not null", None)],
        [("__publishTime", ">=", at(3))],
        [("__publishTime", ">", at(0)), ("__publishTime", "<", at(3))],
        [("__eventTime", "==", at(0))],
        [("__eventTime", "<", at(60)), ("__key", "==", b"a")],
        [("__key", "==", b"nobody")],
    ],
)
def test_the_rows_are_those_that_match(given: list[Given]) -> None:
    where = where_of(given)
    assert where is not None

    def plain(value: Any) -> Any:
        return round(value.timestamp() * 1e6) if isinstance(value, datetime) else value

    wanted = [row for row in all_rows() if all(one.holds(plain(row[one.column])) for one in where.conditions)]
    assert rows_of(given)[0] == wanted
    values = [{"value": row["value"]} for row in wanted]
    assert rows_of(given, ("value",))[0] == values, "columns that are compared need not come out"


def test_a_named_message_is_found_in_its_entry_alone() -> None:
    wanted = all_rows()[2]
    found, decoded = rows_of([("__messageId", "==", wanted["__messageId"])])
    assert (found, decoded) == ([wanted], 1)


def test_entries_that_cannot_match_are_not_decoded() -> None:
    _, decoded = rows_of([("__publishTime", "==", at(4))])
    assert decoded == 1 + 3, "one that matches, and the chunks, which are needed together"
    _, decoded = rows_of([("__key", "==", b"b")])
    assert decoded == len(ENTRIES) - 3, "a key outside of a batch, a marker and an encrypted entry do not match"


def test_rows_are_counted_without_their_payloads() -> None:
    counter = RowCounter()
    for entry_id, section in enumerate(ENTRIES):
        counter.add_entry(TOPIC, LEDGER, entry_id, section)
    assert counter.count == len(all_rows())


def test_what_cannot_be_counted_is_told() -> None:
    damaged = bytearray(ENTRIES[0])
    damaged[-1] ^= 1
    with pytest.raises(ChecksumError, match="9:0"):
        RowCounter().add_entry(TOPIC, LEDGER, 0, bytes(damaged))
    with pytest.raises(UnsupportedError, match="earlier chunks"):
        RowCounter().add_entry(TOPIC, LEDGER, 2, chunks_of(count=3)[2])
