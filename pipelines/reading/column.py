"""A column of record batches while they are built: of values one by one, of one value many times, and of whole arrays.

Values are kept as they came, and the Arrow array is made at once when a record batch is complete: one value that
all rows have is an array that the batches share, and the rows of matrices are copied once, into the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heliograph.pipelines.reading.batch.arrays import OFFSET_MAX, array_of, numbers_of
from heliograph.pipelines.reading.batch.messages import Matrix

REPEATED_MIN = 16  # equal values in a row that are kept as one

Values: TypeAlias = Sequence[Any] | pa.Array | Matrix


@dataclass(slots=True)
class _Repeated:
    """One value many times; None: nulls."""

    value: Any
    count: int


class Column:
    """A column that grows at its end.

    Args:
        kind: its Arrow type.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._parts: list[pa.Array | Matrix | list[Any] | _Repeated] = []
        self._shared: pa.Array | None = None  # the longest run so far of the value ``_shared_value``
        self._shared_value: Any = None

    def append(self, value: Any) -> None:
        """Add one value, or None."""
        if self._parts and type(self._parts[-1]) is list:
            self._parts[-1].append(value)
        else:
            self._parts.append([value])

    def extend(self, values: Values) -> None:
        """Add values, an array of the column's type, or byte strings as the rows of a matrix."""
        if isinstance(values, pa.Array | np.ndarray):
            self._parts.append(values)
        elif self._parts and isinstance(self._parts[-1], list):
            self._parts[-1].extend(values)
        else:
            self._parts.append(list(values))

    def repeat(self, value: Any, count: int) -> None:
        """Add one value, or None, ``count`` times."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _Repeated) and last.value == value:
            last.count += count
        elif isinstance(last, list) and count < REPEATED_MIN:
            last.extend([value] * count)
        elif isinstance(last, _Repeated) and last.count + count < REPEATED_MIN:
            self._parts[-1] = [last.value] * last.count + [value] * count
        else:
            self._parts.append(_Repeated(value, count))

    def take(self) -> pa.Array:
        """Return all values as one array, and begin with none."""
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return self._array(parts[0])
        matrices = [part for part in parts if isinstance(part, np.ndarray)]
        if matrices and len(matrices) == len(parts):
            return _joined(self._kind, matrices)
        runs = [part for part in parts if isinstance(part, _Repeated)]
        if runs and len(runs) == len(parts) and pa.types.is_primitive(self._kind):
            return _numbers(self._kind, runs)
        return pa.concat_arrays(list(map(self._array, parts))) if parts else array_of(self._kind, [])

    def _array(self, part: pa.Array | Matrix | list[Any] | _Repeated) -> pa.Array:
        if isinstance(part, _Repeated):
            return self._repeated(part)
        if isinstance(part, np.ndarray):
            return _joined(self._kind, [part])
        return part if isinstance(part, pa.Array) else array_of(self._kind, part)

    def _repeated(self, run: _Repeated) -> pa.Array:
        """Return a run, as a slice of an array that the next record batches share."""
        if self._shared is None or len(self._shared) < run.count or self._shared_value != run.value:
            self._shared, self._shared_value = array_of(self._kind, [run.value] * run.count), run.value
        return self._shared.slice(0, run.count)


def _numbers(kind: pa.DataType, runs: list[_Repeated]) -> pa.Array:
    counts = [run.count for run in runs]
    numbers = np.repeat(np.array([run.value or 0 for run in runs], np.int64), counts)
    return numbers_of(kind, numbers, np.repeat(np.array([run.value is None for run in runs]), counts))


def _joined(kind: pa.DataType, matrices: Sequence[Matrix]) -> pa.Array:
    """Return the rows of all matrices as one array of byte strings."""
    count, size = sum(map(len, matrices)), sum(matrix.size for matrix in matrices)
    assert size <= OFFSET_MAX, "a record batch ends long before its offsets do"
    data = pa.allocate_buffer(size)
    joined = np.frombuffer(data, np.uint8)
    offsets = np.empty(count + 1, np.int32)
    offsets[0] = row = at = 0
    for matrix in matrices:
        rows, width = matrix.shape
        end = at + rows * width
        joined[at:end].reshape(rows, width)[:] = matrix
        offsets[row + 1 : row + rows + 1] = _steps(rows, width) + at
        row, at = row + rows, end
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), data])


def _steps(rows: int, width: int) -> npt.NDArray[np.int32]:
    """Return the ends of ``rows`` strings of ``width`` bytes each."""
    return np.arange(1, rows + 1, dtype=np.int32) * np.int32(width)
