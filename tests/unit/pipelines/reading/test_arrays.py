"""Arrays that are made without ``pyarrow.array`` are those that it makes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from heliograph.pipelines.reading.batch.arrays import array_of, numbers_of

_TIME = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())

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
