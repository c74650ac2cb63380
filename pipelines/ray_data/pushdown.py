"""Filters of Ray Data as conditions of a read. A filter that is not understood as a whole stays with Ray Data."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.planning.conditions import TIMES, Given, Where, where_of

_SIGNS = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_MIRRORED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def where_of_expression(expression: Any) -> Where | None:
    """Return the conditions of a predicate of Ray Data; None if it is not a conjunction of such conditions."""
    try:
        return where_of(list(_conditions(expression)))
    except BadRequestError:
        return None


def _conditions(expression: Any) -> Iterator[Given]:
    from ray.data.expressions import BinaryExpr, ColumnExpr, LiteralExpr

    if not isinstance(expression, BinaryExpr):
        raise _no_condition(expression)
    left, right, name = expression.left, expression.right, expression.op.value
    if name == "and":
        yield from _conditions(left)
        yield from _conditions(right)
        return
    sign = _SIGNS.get(name)
    if sign is not None and isinstance(left, ColumnExpr) and isinstance(right, LiteralExpr):
        yield left.name, sign, _constant(left.name, right.value)
    elif sign is not None and isinstance(left, LiteralExpr) and isinstance(right, ColumnExpr):
        yield right.name, _MIRRORED[sign], _constant(right.name, left.value)
    else:
        raise _no_condition(expression)


def _constant(column: str, value: Any) -> Any:
    """Return a constant with which Ray Data would compare in the same way."""
    fits = isinstance(value, datetime) and value.tzinfo is not None if column in TIMES else isinstance(value, bytes)
    if not fits:
        raise _no_condition(value)
    return value


def _no_condition(part: Any) -> BadRequestError:
    return BadRequestError(f"no condition stands for {part!r:.200}", field="filter")
