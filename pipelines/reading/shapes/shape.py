"""The form that values of one schema have in a table: an Arrow type, and what makes a cell of it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, time
from typing import Any

import pyarrow as pa

from heliograph.base.errors import BadRequestError, UnsupportedError

DEPTH_MAX = 32  # of types in types (I15)
FIELDS_MAX = 5_000  # of a schema's columns, with those in columns (I15)
RECURSION_DEPTH = 1  # how often a record stands in itself as a struct, unless the caller says otherwise
RECURSION_DEPTH_MAX = 15  # that a caller may ask for (I15)

_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(frozen=True)
class Shape:
    """The form of one schema.

    Args:
        kind: its Arrow type.
        convert: makes a cell of a value that is not null, and raises whatever a foreign value leads it to.
    """

    kind: pa.DataType
    convert: Callable[[Any], Any]

    def optional(self, value: Any) -> Any:
        """Return the cell of a value that may be null."""
        return None if value is None else self.convert(value)


class ShapeLimits:
    """Bounds of the shape of one schema while it is made.

    Args:
        recursion_depth: how often a record may stand in itself as a struct; deeper ones are JSON.
    """

    def __init__(self, recursion_depth: int) -> None:
        self._recursion_depth = recursion_depth
        self._fields = 0

    def is_reached(self, name: str, path: tuple[str, ...]) -> bool:
        """Return whether a record of this name is too deep in records of the same name.

        Args:
            path: the names of the records that it stands in, outermost first.
        """
        return path.count(name) >= self._recursion_depth

    def count(self, fields: int, depth: int) -> None:
        """Count the fields of a record at a depth.

        Raises:
            UnsupportedError: the schema has too many columns, or types in types are too deep.
        """
        self._fields += fields
        if self._fields > FIELDS_MAX:
            raise UnsupportedError(
                "the schema has too many columns: a smaller recursion_depth makes fewer of records that contain "
                "themselves",
                field="schema",
                limit=f"{FIELDS_MAX}",
            )
        if depth > DEPTH_MAX:
            raise UnsupportedError("types in types are too deep", field="schema", limit=f"{DEPTH_MAX}")


def check_recursion_depth(depth: int) -> int:
    """Return the depth that a caller names.

    Raises:
        BadRequestError: it is out of bounds.
    """
    if not isinstance(depth, int) or not 1 <= depth <= RECURSION_DEPTH_MAX:
        raise BadRequestError(
            f"recursion_depth is {depth!r}", field="recursion_depth", limit=f"1 to {RECURSION_DEPTH_MAX}"
        )
    return depth


def json_text(value: Any) -> str:
    """Return a value of Avro as JSON: bytes in base64, times in ISO 8601, decimals and NaN as text."""
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if type(value) is tuple:  # the name of a type in a union, and a value of it
        return _plain(value[1])
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    return value if isinstance(value, str | int | None) else str(value)
