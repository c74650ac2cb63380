"""When the operator makes its report again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heliograph.cluster.operator import reporting
from heliograph.cluster.operator.reporting import Reporter
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metadata.recipes.cluster_init import initialise


async def test_a_clock_that_is_measured_again_is_no_reason_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    async def gathered(*_: Any) -> ClusterReport:
        made.append(1)
        return ClusterReport()

    monkeypatch.setattr(reporting, "gather", gathered)
    store = MemoryServer().open_session()
    await initialise(store)
    reporter, part = Reporter(store, "operator"), PartReport("broker-1", "broker", skew_ms=0.1, round_ms=2.0)
    await reporter.report([part], [])
    await reporter.report([replace(part, skew_ms=0.2, round_ms=3.0)], [])
    assert len(made) == 1
    await reporter.report([replace(part, restarts=1)], [])
    assert len(made) == 2
