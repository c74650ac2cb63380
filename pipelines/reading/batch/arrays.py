"""Arrow arrays of Python's values and numpy's numbers, made without pandas.

``pyarrow.array`` imports pandas if it is installed, whatever it is given, and that takes a process that reads a topic a
second of processor time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

OFFSET_MAX = (1 << 31) - 1  # bytes of all strings of an array


def array_of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Return values as an array, as ``pyarrow.array`` does: byte strings, text, numbers of 64 bits, pairs of a map.

    Args:
        values: None: null.
    """
    if pa.types.is_primitive(kind):
        return numbers_of(kind, [value or 0 for value in values], [value is None for value in values])
    data: list[pa.Buffer] = []
    children: list[pa.Array] | None = None
    if pa.types.is_map(kind):
        sizes = [len(value or ()) for value in values]
        children = [_pairs(kind, [pair for value in values for pair in value or ()])]
    else:
        pieces = [value if isinstance(value, bytes) else (value or "").encode() for value in values]
        sizes, data = [len(piece) for piece in pieces], [pa.py_buffer(b"".join(pieces))]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    assert offsets[-1] <= OFFSET_MAX, "a record batch ends long before its offsets do"
    nulls = _valid_bits([value is None for value in values])
    buffers = [nulls, pa.py_buffer(offsets.astype(np.int32)), *data]
    return pa.Array.from_buffers(kind, len(values), buffers, children=children)


def _pairs(kind: pa.MapType, pairs: Sequence[tuple[Any, Any]]) -> pa.Array:
    keys = array_of(kind.key_type, [key for key, _ in pairs])
    items = array_of(kind.item_type, [item for _, item in pairs])
    return pa.Array.from_buffers(
        pa.struct([kind.key_field, kind.item_field]), len(pairs), [None], children=[keys, items]
    )


def numbers_of(
    kind: pa.DataType, numbers: npt.ArrayLike, is_null: Sequence[bool] | npt.NDArray[np.bool_] = ()
) -> pa.Array:
    """Return numbers of 64 bits as an array of a type that stores such, with nulls where ``is_null`` says so."""
    data = np.ascontiguousarray(numbers, np.int64)
    return pa.Array.from_buffers(kind, len(data), [_valid_bits(is_null), pa.py_buffer(data)])


def _valid_bits(is_null: Sequence[bool] | npt.NDArray[np.bool_]) -> pa.Buffer | None:
    found = np.asarray(is_null, np.bool_)
    return pa.py_buffer(np.packbits(~found, bitorder="little")) if found.any() else None
