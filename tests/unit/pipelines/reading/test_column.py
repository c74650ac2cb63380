"""Columns under construction: what was added in any form comes out in order, and what is equal is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from heliograph.pipelines.reading.column import REPEATED_MIN, Column

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
