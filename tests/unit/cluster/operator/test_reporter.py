"""When the operator makes its report again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.base.errors import ServiceNotReadyError
from heliograph.cluster.operator import reporting
from heliograph.cluster.operator.actor import OperatorActor
from heliograph.cluster.operator.ports import PartFacts
from heliograph.cluster.operator.ray_port import RayPort
from heliograph.cluster.operator.reporting import Reporter, part_problem
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.report.findings import findings, verdict


async def test_a_clock_that_is_measured_again_is_no_reason_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    async def gathered(*_: Any) -> ClusterReport:
        made.append(1)
        return ClusterReport()

    monkeypatch.setattr(reporting, "gather", gathered)
    store = MemoryServer().open_session()
    await initialise(store)
    reporter, part = Reporter(store, "operator"), PartReport("broker-1", "broker", skew_ms=0.1, round_ms=2.0)
    told = list[ClusterReport]()
    reporter.on_report = told.append
    await reporter.report([part], [])
    await reporter.report([replace(part, skew_ms=0.2, round_ms=3.0)], [])
    assert len(made) == 1
    await reporter.report([replace(part, restarts=1)], [])
    assert len(made) == 2
    assert [one.identity for one in told] == ["operator"] * 2, "each that is stored"


async def test_the_first_ledger_that_lacks_copies_and_the_last_one_repaired_are_reasons_for_a_report() -> None:
    store = MemoryServer().open_session()
    await initialise(store)
    reporter, tasks = Reporter(store, "operator"), UnderReplication(store)
    await reporter.has_changed()
    assert not await reporter.has_changed()
    found = []
    for ledger in range(3):
        await tasks.mark(ledger, ["bookie-4"])
        found.append(await reporter.has_changed())
    for ledger in range(3):
        task = await tasks.task(ledger)
        assert task is not None
        await tasks.finish(ledger, task.version)
        found.append(await reporter.has_changed())
    assert found == [True, False, False, False, False, True], "a repair that is short is seen, a long one costs nothing"


async def test_ray_is_told_a_verdict_and_the_address_of_the_gateway_when_they_change() -> None:
    shown, noted = list[str](), list[str]()

    class Shown:
        async def show(self, text: str) -> None:
            shown.append(text)

        async def note_gateway(self, url: str) -> None:
            noted.append(url)
            if len(noted) == 1:
                raise ServiceNotReadyError("Ray does not answer")

    actor, port = OperatorActor(Mock()), cast(RayPort, Shown())
    assert await actor.verdict() == ""
    well, limited = ClusterReport(), ClusterReport(publishing_notes=("too few bookies",))
    for report in (well, well, limited, limited, well):
        actor._on_report(port, report)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert shown == [verdict(well, ()), verdict(limited, findings(limited, None)), verdict(well, ())]
    assert len(set(shown)) == 2
    assert await actor.verdict() == shown[-1]
    assert noted == []
    for url in ("http://a:1", "http://a:1", "http://a:1", "", "http://b:1"):
        actor._on_report(port, ClusterReport(parts=(PartReport("gateway", "gateway", address=url),)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert noted == ["http://a:1", "http://a:1", "http://b:1"], "again after a failure, and where it went"


def test_a_part_that_serves_after_many_starts_is_not_said_to_end() -> None:
    """Such as a bookie whose lost disk was replaced: a start lasts only after a minute."""
    ending = PartFacts("0.1.0", "10.0.0.7", starts=6)
    assert "its process ends again and again (started 6 times in a row" in part_problem(ending)
    serving = part_problem(replace(ending, address="10.0.0.7:3181"))
    assert "its process serves now, after it ended again and again (started 6 times in a row" in serving
    assert part_problem(replace(ending, starts=1)) == ""
