"""The auditor's metrics for Ray, also between two sessions."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.actors.auditor import actor
from heliograph.actors.auditor.actor import AuditorActor
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metrics.auditor import AUDITOR_METRICS

GAUGES = {metric.name for metric in AUDITOR_METRICS if metric.is_rays}
URL = "memory://auditor-metrics"


async def test_what_is_for_ray_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, float] = {}
    exported = asyncio.Event()

    class RecordedGauge:
        def __init__(self, name: str, tag_keys: tuple[str, ...]) -> None:
            self._name = name

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tags == {"worker": "auditor"}
            values[self._name] = value
            if values.keys() == GAUGES:
                exported.set()

    monkeypatch.setattr(actor, "Gauge", RecordedGauge)
    await initialise(await connect_store(URL))
    auditor = AuditorActor(AuditorConfig(), URL)
    await auditor.start()
    await asyncio.wait_for(exported.wait(), 30)
    await auditor.stop()
