"""Times as callers give them become numbers, and what names no moment is refused by the name of its argument."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from heliograph.base.clock import TIME_MS_MAX, as_number, aware_time, iso_time, moment_ms, seconds_of, with_times
from heliograph.base.errors import BadRequestError

NOON = datetime(2026, 1, 31, 12, 0, 0, 123_999, tzinfo=UTC)
NOON_MS = 1_769_860_800_123


@pytest.mark.parametrize("given", [NOON, NOON.astimezone(timezone(timedelta(hours=-5))), NOON_MS])
def test_a_moment_is_milliseconds_in_any_zone(given: Any) -> None:
    assert moment_ms(given, "at") == NOON_MS


@pytest.mark.parametrize("time_ms", [0, NOON_MS, 1_700_000_000_001, TIME_MS_MAX])
def test_a_moment_comes_back_as_it_was_given(time_ms: int) -> None:
    assert moment_ms(aware_time(time_ms), "at") == time_ms
    assert datetime.fromisoformat(iso_time(time_ms)) == aware_time(time_ms)


def test_a_time_of_a_foreign_producer_that_no_datetime_holds_becomes_the_nearest() -> None:
    assert aware_time(1 << 62) == aware_time(TIME_MS_MAX)
    assert aware_time(-5) == aware_time(0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (datetime(2026, 1, 31), "without a time zone"),
        (datetime(1969, 1, 1, tzinfo=UTC), "not an aware datetime"),
        (NOON_MS / 1000, "not an aware datetime"),
        (True, "not an aware datetime"),
        (-1, "not an aware datetime"),
        ("2026-01-31", "not an aware datetime"),
    ],
)
def test_what_is_no_moment_is_refused_by_name(given: Any, words: str) -> None:
    with pytest.raises(BadRequestError, match=words) as refused:
        moment_ms(given, "deliver_at")
    assert refused.value.field == "deliver_at"
    assert "deliver_at" in str(refused.value)


def test_a_span_is_seconds() -> None:
    assert seconds_of(timedelta(milliseconds=1500), "timeout") == seconds_of(1.5, "timeout") == 1.5
    for wrong in ("1", math.nan, True, NOON, None):
        with pytest.raises(BadRequestError, match="not a number of seconds") as refused:
            seconds_of(wrong, "timeout")
        assert refused.value.field == "timeout"


def test_a_name_says_the_unit_of_its_number() -> None:
    assert as_number("retry_first_ms", timedelta(seconds=2)) == 2000
    assert as_number("retention_seconds", timedelta(days=1)) == 86_400
    assert as_number("linger_ms", timedelta(microseconds=500)) == 0.5
    assert as_number("to", NOON) == NOON_MS
    assert as_number("to", "earliest") == "earliest"


def test_an_answer_has_times_beside_its_numbers() -> None:
    answer = {
        "created_ms": NOON_MS,
        "ledgers": [{"closed_ms": 0, "entries": 3}],
        "page": ({"expires_ms": None},),
        "topicCreationTimeStamp": NOON_MS,
        "retention_seconds": -1,
        "delayed_ms_max": 1500,
        "wait_ms": 1 << 62,
        "dispatch_bytes_per_second": 7,
        "properties": {"created_ms": "5", "wait_seconds": "soon"},
        "closed_ms": NOON_MS,
        "closed": "a name that is taken",
        "is_ms": True,
    }
    before = repr(answer)
    assert with_times(answer) == answer | {
        "created": aware_time(NOON_MS),
        "ledgers": [{"closed_ms": 0, "closed": None, "entries": 3}],
        "page": ({"expires_ms": None, "expires": None},),
        "topicCreation": aware_time(NOON_MS),
        "retention": timedelta(seconds=-1),
        "delayed_max": timedelta(seconds=1.5),
        "wait": timedelta.max,
    }
    assert repr(answer) == before
    assert with_times([1, "x"]) == [1, "x"]
