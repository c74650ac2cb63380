"""Conditions on rows, known to plans and tasks: what cannot match is not planned, not decoded or not handed out. Pure.

A condition compares one of four columns with a constant. Values that are null match none. All conditions have to hold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.protocol.message_id import MessageId

KEY, MESSAGE_ID = "__key", "__messageId"
PUBLISH_TIME, EVENT_TIME = "__publishTime", "__eventTime"
TIMES = (PUBLISH_TIME, EVENT_TIME)
COLUMNS = (KEY, MESSAGE_ID, PUBLISH_TIME, EVENT_TIME)

IN, NOT_NULL = "in", "not null"
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = (*COMPARISONS, IN, NOT_NULL)
VALUES_MAX = 10_000  # of one ``in`` (I15)
# How far the clocks of producers and brokers may be apart where ledgers are left out by the time they were closed.
CLOCK_SKEW_MS = 3_600_000
_MICROSECONDS = 1000  # in a millisecond

Given = tuple[str, str, Any]  # a condition as users write it: column, operator, value


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison. Times are microseconds since the epoch, keys and message ids bytes; ``in`` has a set of them."""

    column: str
    operator: str
    value: Any = None

    def holds(self, value: Any) -> bool:
        """Return whether a value of the column, in the same units, satisfies the condition."""
        if value is None:
            return False
        if self.operator == NOT_NULL:
            return True
        return value in self.value if self.operator == IN else COMPARISONS[self.operator](value, self.value)


@dataclass(frozen=True, slots=True)
class Where:
    """The rows that are wanted: those for which all conditions hold. Picklable."""

    conditions: tuple[Condition, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.column for one in self.conditions))

    def of(self, column: str) -> list[Condition]:
        return [one for one in self.conditions if one.column == column]

    def may_hold(self, column: str, value: Any) -> bool:
        """Return whether a row with this value in a column can match."""
        return all(one.holds(value) for one in self.of(column))

    def message_ids(self) -> list[MessageId] | None:
        """Return the ids of the only messages that can match, None if they are not named."""
        named = [one for one in self.of(MESSAGE_ID) if one.operator in ("==", IN)]
        if not named:
            return None
        ids = {named[0].value} if named[0].operator == "==" else set(named[0].value)
        return [MessageId.from_bytes(one) for one in sorted(ids)]

    @property
    def leaves_out_ledgers(self) -> bool:
        """Whether ``message_ids`` or ``may_be_in`` may tell that a ledger has no matching rows."""
        return bool({MESSAGE_ID, PUBLISH_TIME} & {*self.columns})

    def may_be_in(self, opened_ms: int, closed_ms: int) -> bool:
        """Return whether a ledger can have matching rows, by their times of publication.

        Args:
            opened_ms, closed_ms: since when and until when the ledger was written, by the clock of its broker; 0: not
                known, or not yet.
        """
        earliest, latest = self._published_between()
        if closed_ms and earliest is not None and (closed_ms + CLOCK_SKEW_MS) * _MICROSECONDS < earliest:
            return False
        return not (opened_ms and latest is not None and (opened_ms - CLOCK_SKEW_MS) * _MICROSECONDS > latest)

    def _published_between(self) -> tuple[int | None, int | None]:
        lower = [one.value for one in self.of(PUBLISH_TIME) if one.operator in ("==", ">", ">=")]
        upper = [one.value for one in self.of(PUBLISH_TIME) if one.operator in ("==", "<", "<=")]
        several = [one.value for one in self.of(PUBLISH_TIME) if one.operator == IN and one.value]
        lower += [min(values) for values in several]
        upper += [max(values) for values in several]
        return max(lower, default=None), min(upper, default=None)


def where_of(given: Iterable[Given] | None) -> Where | None:
    """Return the conditions that a caller wrote; None without any.

    Args:
        given: triples of a column, an operator and a value. The columns are ``__key``, ``__messageId``,
            ``__publishTime`` and ``__eventTime``; the operators ``==``, ``<``, ``<=``, ``>``, ``>=``, ``in`` and
            ``not null``. The value is bytes or text for a key, the bytes of a message id (which have no order), a
            datetime or ms since the epoch for a time.

    Raises:
        BadRequestError: there is no such column or operator, or the value does not fit.
    """
    if given is None:
        return None
    conditions = tuple(_condition(one) for one in given)
    return Where(conditions) if conditions else None


def both(one: Where | None, other: Where | None) -> Where | None:
    if one is None or other is None:
        return one or other
    return Where((*one.conditions, *other.conditions))


def _condition(given: Given) -> Condition:
    try:
        column, sign, value = given
    except (TypeError, ValueError):
        raise BadRequestError(f"{given!r} is no condition", field="where", limit="(column, operator, value)") from None
    if column not in COLUMNS:
        raise BadRequestError(f"no condition can be on {column!r}", field="where", limit=", ".join(COLUMNS))
    if sign not in OPERATORS or (column == MESSAGE_ID and sign not in ("==", IN, NOT_NULL)):
        raise BadRequestError(f"{column} has no operator {sign!r}", field="where", limit=", ".join(OPERATORS))
    if sign == NOT_NULL:
        return Condition(column, sign)
    if sign != IN:
        return Condition(column, sign, _value(column, value))
    if isinstance(value, bytes | str) or not isinstance(value, Iterable):
        raise BadRequestError(f"{value!r} is no list of values", field="where", limit="a list")
    values = frozenset(_value(column, one) for one in value if one is not None)
    if len(values) > VALUES_MAX:
        raise BadRequestError(f"a condition has {len(values)} values", field="where", limit=f"{VALUES_MAX}")
    return Condition(column, IN, values)


def _value(column: str, value: Any) -> Any:
    if column in TIMES:
        if isinstance(value, datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            since = moment - datetime(1970, 1, 1, tzinfo=UTC)
            return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        if isinstance(value, int) and not isinstance(value, bool):
            return value * _MICROSECONDS
    elif isinstance(value, str) and column == KEY:
        return value.encode()
    elif isinstance(value, bytes | bytearray | memoryview):
        return bytes(value) if column == KEY else _message_id(bytes(value))
    raise BadRequestError(f"{value!r} is no value of {column}", field="where")


def _message_id(value: bytes) -> bytes:
    try:
        MessageId.from_bytes(value)
    except (HeliographError, ValueError) as error:
        raise BadRequestError(f"{value!r} is no message id", field="where") from error
    return value
