"""Filters of Spark as conditions of a read. Spark applies all other filters itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (  # type: ignore[import-not-found, unused-ignore]
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.planning.conditions import COLUMNS, IN, NOT_NULL, TIMES, Where, where_of

_SIGNS = {
    EqualTo: "==",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: IN,
}


def where_of_filter(one: Filter, columns: Sequence[str]) -> Where | None:
    """Return the condition that stands for a filter of Spark, None if there is none.

    Args:
        columns: of the table. Fields of decoded values may have names of columns that it does not have.
    """
    path: tuple[str, ...] = one.attribute if hasattr(one, "attribute") else ()
    if len(path) != 1 or path[0] not in COLUMNS or path[0] not in columns:
        return None
    (column,) = path
    if isinstance(one, IsNotNull):
        return where_of([(column, NOT_NULL, None)])
    sign = _SIGNS.get(type(one))
    values = list(one.value) if sign == IN else [getattr(one, "value", None)]
    if sign is None or not all(_fits(column, value) for value in values):
        return None
    try:
        return where_of([(column, sign, values if sign == IN else values[0])])
    except BadRequestError:
        return None  # Spark compares what is no message id, or message ids by their order


def _fits(column: str, value: Any) -> bool:
    if column in TIMES:
        return isinstance(value, datetime) and value.tzinfo is not None
    return isinstance(value, bytes | bytearray)
