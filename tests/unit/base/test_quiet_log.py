"""Log lines that strangers cause are limited and counted, and repeated lines are logged ever more rarely."""

from __future__ import annotations

import logging

import pytest

from heliograph.base.guard.quiet_log import LINES_PER_MINUTE_MAX, QuietLog, SparseLog


def test_a_flood_is_a_few_lines_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    quiet = QuietLog(logging.getLogger("test.quiet"), lambda: now)
    for number in range(10_000):
        quiet.warning("bad frame", "closed the connection from %s", number)
    quiet.warning("no secret", "refused the connection from %s", "a stranger")
    assert len(caplog.records) == LINES_PER_MINUTE_MAX + 1
    assert caplog.records[-1].getMessage() == "refused the connection from a stranger"
    caplog.clear()
    now = 61.0
    quiet.warning("bad frame", "closed the connection from %s", "another")
    assert [record.getMessage() for record in caplog.records] == [
        f"{10_000 - LINES_PER_MINUTE_MAX} further lines like the next were left out",
        "closed the connection from another",
    ]


def test_the_limit_the_period_and_the_line_about_the_rest_may_be_given(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    quiet = QuietLog(
        logging.getLogger("test.quiet"), lambda: now, lines=2, period_seconds=5.0, left_out="%d more were refused"
    )
    for number in range(5):
        quiet.warning("refused", "refused %d", number)
    now = 5.0
    quiet.warning("refused", "refused %d", 5)
    assert [record.getMessage() for record in caplog.records] == [
        "refused 0", "refused 1", "3 more were refused", "refused 5",
    ]  # fmt: skip


def test_the_first_tenth_and_hundredth_are_logged_by_kind(caplog: pytest.LogCaptureFixture) -> None:
    log = SparseLog(logging.getLogger("sparse"))
    for number in range(1, 151):
        log.warning("a", "event %s", number)
    log.warning("b", "other")
    assert [record.getMessage() for record in caplog.records] == [
        "event 1", "event 10 (10 times by now)", "event 100 (100 times by now)", "other",
    ]  # fmt: skip
