"""The clocks of this process, in milliseconds, and times as callers give them and as text.

Callers give aware ``datetime`` and ``timedelta``, or numbers of milliseconds or seconds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar, cast

from heliograph.base.errors import BadRequestError

Moment: TypeAlias = int | datetime  # ms since the epoch, or an aware time
Duration: TypeAlias = float | timedelta  # seconds, or a time of its own unit

Answer = TypeVar("Answer")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT_MS_MAX = (1 << 63) - 1
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999
NEVER_MS = 1 << 62  # later than any time
STEP_MS_MAX = 60_000  # that a clock is set ahead by
BELIEF_MS = 3_600_000  # until a greater step of the wall clock is believed
_MOMENT = re.compile(r"(\w*ed|now|expires|\w+_time|\w+_at|\w+(?=Time))(?:_ms|Ms|Time[sS]tamp)")
_SPAN = re.compile(r"(\w+?)_(?:(ms)|seconds)(_max|_min)?")


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970. It may jump: no safety property depends on it."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a clock that never goes back, in ms from an arbitrary start; it stops while the machine sleeps."""
    return time.monotonic_ns() // 1_000_000


class SteadyClock:
    """A wall clock to judge ages by. It follows the wall clock back at once, and ahead too, except for a step of more
    than ``STEP_MS_MAX``, which it believes after ``BELIEF_MS``: something deleted too early cannot be had back."""

    def __init__(self) -> None:
        self._ahead: int | None = None  # of the monotonic clock; None before the first look
        self._doubted_since: int | None = None  # by the monotonic clock, while the wall clock is a step ahead

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        wall, steady = wall_ms(), monotonic_ms()
        ahead = wall - steady
        if self._ahead is not None and ahead > self._ahead + STEP_MS_MAX:
            if self._doubted_since is None:
                self._doubted_since = steady
            if steady - self._doubted_since < BELIEF_MS:
                return steady + self._ahead
        self._ahead, self._doubted_since = ahead, None
        return wall


def aware_time(time_ms: int) -> datetime:
    """Return a time, given in ms since the epoch, in UTC.

    A time outside the years 1970 to 9999 becomes the nearest of the two ends: any producer may send one, and it must
    not stop a consumer.
    """
    seconds, milliseconds = divmod(min(max(time_ms, 0), TIME_MS_MAX), 1000)
    return datetime.fromtimestamp(seconds, UTC) + timedelta(milliseconds=milliseconds)


def iso_time(time_ms: int) -> str:
    """Return ``aware_time`` as ISO-8601 with milliseconds, such as ``2013-01-01T05:15:00.000Z``."""
    return aware_time(time_ms).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def moment_ms(given: object, field: str) -> int:
    """Return a time in ms since the epoch, without fractions of a millisecond.

    Args:
        given: An int in ms, or an aware datetime.
        field: The name of the argument, for the error.

    Raises:
        BadRequestError: It is neither, is before 1970, or is a datetime without a time zone.
    """
    if isinstance(given, datetime):
        if given.tzinfo is None or given.utcoffset() is None:
            raise BadRequestError(
                f"{field} is {given!r}, a time without a time zone: give one, as datetime.now(UTC) has", field=field
            )
        given = (given - EPOCH) // timedelta(milliseconds=1)
    if type(given) is not int or not 0 <= given <= MOMENT_MS_MAX:
        raise BadRequestError(
            f"{field} is {given!r:.80}, not an aware datetime and not a time in ms since the epoch", field=field
        )
    return given


def seconds_of(given: object, field: str) -> float:
    """Return a time span in seconds.

    Args:
        given: A number of seconds, or a timedelta.
        field: The name of the argument, for the error.

    Raises:
        BadRequestError: It is neither.
    """
    if isinstance(given, timedelta):
        return given.total_seconds()
    if not isinstance(given, int | float) or isinstance(given, bool) or given != given:
        raise BadRequestError(f"the {field} is {given!r:.80}, not a number of seconds and not a timedelta", field=field)
    return given


def as_number(name: str, given: Any) -> Any:
    """Return a time as the number that the argument ``name`` stands for; anything else as it is.

    A datetime becomes ms since the epoch. A timedelta becomes ms where the name ends in ``ms`` (or ``ms_max``), seconds
    otherwise.

    Raises:
        BadRequestError: A datetime without a time zone, or before 1970.
    """
    if isinstance(given, datetime):
        return moment_ms(given, name)
    if isinstance(given, timedelta):
        is_ms = name.endswith(("ms", "ms_max", "ms_min"))
        number = given / timedelta(milliseconds=1) if is_ms else given.total_seconds()
        return int(number) if number.is_integer() else number
    return given


def as_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the numbers that ``as_number`` has for times, also those of the sections in them.

    Raises:
        BadRequestError: As ``as_number`` raises it.
    """
    return {
        name: as_numbers(value) if isinstance(value, Mapping) else as_number(name, value)
        for name, value in values.items()
    }


def with_times(answer: Answer) -> Answer:
    """Return a copy of an answer of ``client.admin`` with aware times and time spans beside its numbers.

    ``created`` stands beside ``created_ms``, ``message_ttl`` beside ``message_ttl_seconds``, and ``lastConsumed``
    beside ``lastConsumedTimestamp``; in dictionaries and lists within it, too. A moment is None where its number is 0
    or None: it has not come. A span has the value of its number: it is -1 s where -1 means that there is no limit.
    """
    if isinstance(answer, list | tuple):
        return cast(Answer, type(answer)(map(with_times, answer)))
    if not isinstance(answer, dict):
        return answer
    made = {name: with_times(value) for name, value in answer.items()}
    for name, value in answer.items():
        if isinstance(name, str) and isinstance(value, int | float | None) and not isinstance(value, bool):
            if moment := _MOMENT.fullmatch(name):
                made.setdefault(moment[1], aware_time(int(value)) if value else None)
            elif value is not None and (span := _SPAN.fullmatch(name)):
                made.setdefault(span[1] + (span[3] or ""), _span(value, "milliseconds" if span[2] else "seconds"))
    return cast(Answer, made)


def _span(number: float, unit: str) -> timedelta:
    try:
        return timedelta(**{unit: number})
    except OverflowError:
        return timedelta.max if number > 0 else timedelta.min
