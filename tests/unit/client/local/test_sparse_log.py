"""Lines that may repeat without end are logged ever more rarely."""

from __future__ import annotations

import logging

import pytest

from heliograph.base.guard.quiet_log import SparseLog


def test_the_first_tenth_and_hundredth_are_logged_by_kind(caplog: pytest.LogCaptureFixture) -> None:
    log = SparseLog(logging.getLogger("sparse"))
    for number in range(1, 151):
        log.warning("a", "event %s", number)
    log.warning("b", "other")
    assert [record.getMessage() for record in caplog.records] == [
        "event 1", "event 10 (10 times by now)", "event 100 (100 times by now)", "other",
    ]  # fmt: skip
