"""An operator that crashes ends its part by what its process has for that, and not by more."""

from __future__ import annotations

import asyncio
import uuid
from contextvars import copy_context
from typing import Any

import pytest

from heliograph.base.processes import own_end
from heliograph.cluster.operator import actor
from heliograph.cluster.operator.actor import OperatorActor, OperatorArguments
from heliograph.cluster.operator.operator import OperatorSettings
from heliograph.cluster.operator.planning import OperatorRules
from heliograph.cluster.operator.ray_port import RayPort
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.cluster_init import initialise
from tests.patience import START_SECONDS


def test_a_crash_of_the_operator_ends_its_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: RayPort, homes: Any) -> None:
        raise AttributeError("a kind of error that nobody thought of")

    monkeypatch.setattr(RayPort, "sight", broken)
    monkeypatch.setattr(actor, "own_address", lambda: "127.0.0.1")
    context = copy_context()

    async def crashed() -> None:
        url = f"memory://{uuid.uuid4().hex}"
        store = await connect_store(url)
        await initialise(store)
        await store.close()
        ended = asyncio.Event()
        own_end.set(ended.set)  # as in a shared process; else the process would end, and with it this test
        settings = OperatorSettings("operator", OperatorRules(), (), 1, 1.0)
        made = OperatorActor(OperatorArguments("any", url, 10_000, settings, lambda *_: None))
        await made.start()
        async with asyncio.timeout(START_SECONDS):
            await ended.wait()
        await made.stop()  # in good order: there is nothing left to stop

    with asyncio.Runner() as runner:
        runner.run(crashed(), context=context)
