"""Columns under construction: values in any form come out in order; arrays and ids equal those made one by one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from heliograph.pipelines.reading.batch.arrays import array_of, numbers_of
from heliograph.pipelines.reading.column import REPEATED_MIN, Column
from heliograph.pipelines.reading.message_ids import SingleIds
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.pulsar_pb2 import MessageIdData

_TIME = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())


def matrix(rows: int, width: int, first: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return (np.arange(rows * width) + first).astype(np.uint8).reshape(rows, width)


def listed(*parts: Any) -> list[Any]:
    return [row.tobytes() if isinstance(part, np.ndarray) else row for part in parts for row in part]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [matrix(3, 4)],
        [matrix(3, 4), matrix(2, 5, 7), matrix(1, 0)],
        [matrix(3, 4), [b"x", None], matrix(2, 2)],
        [[b"x"], pa.array([b"y", None], pa.binary()), [b"z"]],
    ],
)
def test_byte_strings_of_all_forms(parts: list[Any]) -> None:
    column = Column(pa.binary())
    for part in parts:
        column.extend(part)
    wanted = listed(*[part.to_pylist() if isinstance(part, pa.Array) else part for part in parts])
    taken = column.take()
    taken.validate(full=True)
    assert taken.type == pa.binary()
    assert taken.to_pylist() == wanted
    assert column.take().to_pylist() == []


def test_values_one_by_one_between_others() -> None:
    column = Column(pa.binary())
    column.append(b"a")
    column.append(None)
    column.extend(matrix(2, 3))
    column.append(b"b")
    column.repeat(None, 1)
    assert column.take().to_pylist() == [b"a", None, *listed(matrix(2, 3)), b"b", None]


def test_a_matrix_with_columns_left_out_is_copied_row_by_row() -> None:
    column = Column(pa.binary())
    column.extend(matrix(4, 9)[:, 3:7])
    assert column.take().to_pylist() == [row[3:7].tobytes() for row in matrix(4, 9)]


@pytest.mark.parametrize("kind", [pa.int64(), _TIME])
def test_runs_of_numbers(kind: pa.DataType) -> None:
    column, wanted = Column(kind), []
    for value, count in [(5, 1), (5, 2), (6, 1), (None, 40), (7, 40), (7, 1), (None, 1), (0, 3)]:
        column.repeat(value, count)
        wanted += [value] * count
    taken = column.take()
    assert taken.type == kind
    assert taken.cast(pa.int64()).to_pylist() == wanted


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.string(), "topic"), (pa.string(), None), (_MAP, []), (_TIME, 5), (pa.binary(), None)]
)
def test_one_value_of_all_rows_is_shared_by_the_batches(kind: pa.DataType, value: Any) -> None:
    column = Column(kind)
    column.repeat(value, 100)
    column.repeat(value, 100)
    first = column.take()
    column.repeat(value, 50)
    second = column.take()
    assert first.type == second.type == kind
    assert first.to_pylist() == pa.array([value] * 200, kind).to_pylist()
    assert second.to_pylist() == pa.array([value] * 50, kind).to_pylist()
    assert [one and one.address for one in first.buffers()] == [one and one.address for one in second.buffers()]


def test_another_value_is_not_taken_from_what_was_shared() -> None:
    column = Column(pa.string())
    for value, count in [("a", 100), ("b", 50), (None, 50), ("a", 200)]:
        column.repeat(value, count)
        assert column.take().to_pylist() == [value] * count


def test_texts_in_short_and_long_runs() -> None:
    column, wanted = Column(pa.string()), []
    for value, count in [("a", 1), ("b", REPEATED_MIN), ("b", 1), ("c", 1), ("d", 2), (None, 1), ("e", 1)]:
        column.repeat(value, count)
        wanted += [value] * count
    assert column.take().to_pylist() == wanted


# Ledgers and partitions change, come back, and meet ids of chunked messages in between.
PLACES = [
    MessageId(ledger, entry, partition)
    for ledger, partition in ((0, -1), (0, 0), (7, 0), (7, -1), (0, -1), (1 << 40, 3))
    for entry in (0, 1, 127, 128, 1 << 33, 0)
]


def test_each_id_equals_that_of_a_message_id() -> None:
    ids = SingleIds()
    assert [ids.bytes_of(place) for place in PLACES] == [place.to_bytes() for place in PLACES]


def test_the_first_chunk_of_a_message_is_no_part_of_the_next_id() -> None:
    ids = SingleIds()
    place = MessageId(7, 5)
    chunked = MessageIdData.FromString(ids.bytes_of(place, first_chunk=(6, 4)))
    assert (chunked.first_chunk_message_id.ledger_id, chunked.first_chunk_message_id.entry_id) == (6, 4)
    assert MessageId.from_bytes(chunked.SerializeToString()) == place
    assert ids.bytes_of(place) == place.to_bytes()


READ = """
import sys
from heliograph.pipelines.reading.columns import EVERY_COLUMN, Rows
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, full_head
from heliograph.protocol.entry import encode_entry

def metadata(**fields):
    return pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1_700_000_000_123, **fields)

for size in (1, 40):
    rows = Rows(EVERY_COLUMN)
    for properties in ({}, {"a": "1"}):
        for key, time in ((None, None), ("k", 1_600_000_000_000), ("longer", None)):
            heads = [full_head(3, key, properties, time), full_head(4, None, None, None)] * size
            rows.add_entry("t", 0, 9, 0, encode_batch(metadata(), heads, [b"abc", b"defg"] * size))
    pairs = [pb.KeyValue(key="a", value="1")]
    rows.add_entry("t", 0, 9, 1, encode_entry(metadata(partition_key="k", properties=pairs), b"x"))
    assert rows.take().num_rows
print(sorted({"pyarrow", "pandas"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.binary(), []),
        (pa.binary(), [b"a", b"", None, b"\xff" * 300]),
        (pa.string(), ["a", "", None, "\u00fc\u4e16"]),
        (pa.int64(), [0, None, -1, (1 << 63) - 1]),
        (_TIME, [5, None, 0]),
        (_MAP, []),
        (_MAP, [[], None, [("a", "1"), ("b", "")], [("c", "3")]]),
        *[(kind, [None] * 9) for kind in (pa.binary(), pa.string(), pa.int64(), _TIME, _MAP)],
    ],
)
def test_arrays_of_values(kind: pa.DataType, values: list[Any]) -> None:
    made = array_of(kind, values)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))
    assert made.null_count == values.count(None)


@pytest.mark.parametrize("nulls", [[], [False] * 20, [number % 3 == 0 for number in range(20)]])
def test_arrays_of_numbers(nulls: list[bool]) -> None:
    numbers = np.arange(20)
    made = numbers_of(_TIME, numbers, np.array(nulls, np.bool_))
    made.validate(full=True)
    assert made.equals(pa.array(numbers, pa.int64(), mask=np.array(nulls) if nulls else None).cast(_TIME))


@pytest.mark.slow
def test_rows_are_made_without_pandas() -> None:
    pytest.importorskip("pandas")
    ran = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['pyarrow']"
