"""Figures for people: units by the names that reports give them."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.base.clock import wall_ms
from heliograph.cli.figures import age_text, for_people, size_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (2_400_000, "2.4 MB"),
        (999_999, "1 MB"),
        (5e15, "5 PB"),
        (-1, "-1 B"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "59 s ago"), (185, "3 min ago"), (7_300, "2 h ago"), (200_000, "2 d ago")],
)
def test_ages(seconds: int, text: str) -> None:
    now = 1_800_000_000_000
    assert age_text(now - seconds * 1000, now) == text
    assert age_text(now + 60_000, now) == "2027-01-15T08:01:00.000Z"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("mb_per_s", 2.4, "2.4 MB/s"),
        ("msgs_per_s", 12_345.6, "12,346 messages/s"),
        ("msgRateIn", 0.0614, "0.0614 messages/s"),
        ("msgThroughputIn", 4179.8, "4.18 kB/s"),
        ("storageSize", 68, "68 B"),
        ("size_bytes", 1024, "1.02 kB"),
        ("p99_ms", 12.345, "12.3 ms"),
        ("messages", 100_000, "100,000"),
        ("lastPublishTimeStamp", 0, "not known"),
        ("bytes_in_per_second", 2_412_345.6, "2.41 MB/s"),
        ("messages_out_per_second", 0.5273088980745064, "0.527 messages/s"),
        ("cpu_share", 0.0163, "1.6%"),
        ("bytes", 71, "71 B"),
        ("closed_ms", 0, "not known"),
        ("ledger", 123_456, 123_456),
        ("broker_id", "broker-1", "broker-1"),
        ("backlogSize", -1, -1),
        ("topic", "a_bytes", "a_bytes"),
        ("missing", 0, 0),
        ("is_cut", True, True),
    ],
)
def test_a_figure_has_the_unit_that_its_name_says(name: str, value: Any, text: Any) -> None:
    assert for_people(name, value) == text
    assert str(for_people("lastPublishTimeStamp", wall_ms() - 200_000)) == "3 min ago"
