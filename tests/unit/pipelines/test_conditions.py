"""Conditions on rows: how they are written, and which ledgers and entries a plan leaves out for them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.planning.conditions import CLOCK_SKEW_MS, Condition, both, where_of
from heliograph.protocol.message_id import MessageId

HOUR_MS = 3_600_000
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)


def test_values_have_one_form() -> None:
    where = where_of(
        [
            ("__publishTime", ">=", NOON),
            ("__eventTime", "<", NOON_MS),
            ("__key", "in", ["a", b"\xff", None]),
            ("__key", "not null", None),
        ]
    )
    assert where is not None
    assert where.conditions == (
        Condition("__publishTime", ">=", NOON_MS * 1000),
        Condition("__eventTime", "<", NOON_MS * 1000),
        Condition("__key", "in", frozenset([b"a", b"\xff"])),
        Condition("__key", "not null"),
    )
    assert where.columns == ("__publishTime", "__eventTime", "__key")
    assert pickle.loads(pickle.dumps(where)) == where
    assert where_of([]) is None
    assert both(None, where) is where


@pytest.mark.parametrize(
    "given",
    [
        ("value", "==", b"x"),
        ("__key", "!=", b"x"),
        ("__key", "==", 7),
        ("__key", "in", "text"),
        ("__publishTime", "==", "noon"),
        ("__publishTime", "==", True),
        ("__messageId", "<", MessageId(1, 2).to_bytes()),
        ("__messageId", "==", b"\xff\xff"),
        ("__key", "=="),
    ],
)
def test_what_is_no_condition_is_told(given: Any) -> None:
    with pytest.raises(BadRequestError):
        where_of([given])


@pytest.mark.parametrize(
    ("sign", "opened", "closed", "may"),
    [
        (">=", 0, NOON_MS - CLOCK_SKEW_MS - 1, False),
        (">=", 0, NOON_MS - CLOCK_SKEW_MS, True),
        (">=", 0, 0, True),  # it is still written
        ("<", NOON_MS + CLOCK_SKEW_MS + 1, 0, False),
        ("<", NOON_MS, NOON_MS + 9 * HOUR_MS, True),
        ("==", NOON_MS + 2 * HOUR_MS, 0, False),
        ("==", NOON_MS - 5 * HOUR_MS, NOON_MS - 4 * HOUR_MS, False),
        ("in", NOON_MS - 5 * HOUR_MS, NOON_MS - 4 * HOUR_MS, False),
        ("in", NOON_MS + 5 * HOUR_MS, 0, False),
        ("in", NOON_MS - HOUR_MS, NOON_MS, True),
    ],
)
def test_ledgers_are_left_out_by_time_with_room_for_clocks(sign: str, opened: int, closed: int, may: bool) -> None:
    where = where_of([("__publishTime", sign, [NOON_MS] if sign == "in" else NOON_MS)])
    assert where is not None
    assert where.may_be_in(opened, closed) is may


def test_null_satisfies_nothing() -> None:
    where = where_of([("__key", ">=", b"")])
    assert where is not None
    assert not where.may_hold("__key", None)
    assert where.may_hold("__key", b"")
    assert where.may_hold("__eventTime", None)  # it is not compared


def test_named_messages() -> None:
    ids = [MessageId(1, 2, 0, 3, 4), MessageId(1, 5, 0)]
    where = where_of([("__messageId", "in", [one.to_bytes() for one in ids])])
    assert where is not None
    assert where.message_ids() == ids
    assert where_of([("__key", "==", b"k")]).message_ids() is None  # type: ignore[union-attr]
