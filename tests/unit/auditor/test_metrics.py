"""The auditor's metrics: every number of its statistics, also between two sessions."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.actors.auditor import actor
from heliograph.actors.auditor.actor import GAUGES, AuditorActor
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.cluster_init import initialise

URL = "memory://auditor-metrics"


async def test_every_number_is_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, float] = {}
    exported = asyncio.Event()

    class RecordedGauge:
        def __init__(self, name: str, tag_keys: tuple[str, ...]) -> None:
            self._name = name

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tags == {"worker": "auditor"}
            values[self._name] = value
            if len(values) == len(GAUGES):
                exported.set()

    monkeypatch.setattr(actor, "Gauge", RecordedGauge)
    await initialise(await connect_store(URL))
    auditor = AuditorActor(AuditorConfig(), URL)
    await auditor.start()
    await asyncio.wait_for(exported.wait(), 30)
    await auditor.stop()
    assert {"auditor_ledgers_damaged", "auditor_tasks_outstanding", "auditor_bytes_repaired"} <= values.keys()
    assert len(values) == len(GAUGES), "no two statistics share a name"
