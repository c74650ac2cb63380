"""A column of a record batch while it is built: of values one by one, of one value many times, and of whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

REPEATED_MIN = 16  # equal values in a row that are worth an array of their own

Values: TypeAlias = Sequence[Any] | pa.Array


class Column:
    """A column that grows at its end.

    Args:
        kind: its Arrow type.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._parts: list[pa.Array] = []
        self._pending: list[Any] = []

    def extend(self, values: Values) -> None:
        """Add values, or an array of the column's type."""
        if isinstance(values, pa.Array):
            self._close()
            self._parts.append(values)
        else:
            self._pending.extend(values)

    def repeat(self, value: Any, count: int) -> None:
        """Add one value, or None, ``count`` times."""
        if count < REPEATED_MIN:
            self._pending.extend([value] * count)
            return
        self._close()
        self._parts.append(
            pa.nulls(count, self._kind) if value is None else pa.repeat(pa.scalar(value, self._kind), count)
        )

    def array(self) -> pa.Array:
        """Return all values as one array."""
        if self._pending or not self._parts:
            self._parts.append(_array(self._kind, self._pending))
            self._pending = []
        return self._parts[0] if len(self._parts) == 1 else pa.concat_arrays(self._parts)

    def _close(self) -> None:
        if self._pending:
            self._parts.append(_array(self._kind, self._pending))
            self._pending = []


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_map(kind) and not any(values):
        none = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array([0] * (len(values) + 1), pa.int32()), none, none)
    return pa.array(values, kind)
