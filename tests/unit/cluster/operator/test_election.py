"""Two operators of one cluster: one acts, and the other refuses what it is asked until the first is gone."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.base.errors import ServiceNotReadyError
from heliograph.cluster.operator.operator import Operator, OperatorSettings
from heliograph.cluster.operator.planning import OperatorRules
from heliograph.cluster.operator.storage import load_roster, save_roster
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise
from tests.unit.cluster.operator.test_leaving import PlayedCluster, fast, first
from tests.waits import until


def settings(identity: str) -> OperatorSettings:
    return OperatorSettings(identity, OperatorRules(), ("metadata",), 2, 1.0)


def test_the_second_of_two_operators_does_nothing_and_says_who_leads() -> None:
    async def scenario() -> None:
        server = MemoryServer()
        store, other = server.open_session(), server.open_session()
        await initialise(store)
        await save_roster(store, first())
        leader = Operator(store, PlayedCluster(), settings("operator on node-a"))
        idle = PlayedCluster()
        waiting = Operator(other, idle, settings("operator on node-b"))
        leading = asyncio.create_task(leader.run())
        await until(lambda: leader._roster is not None)
        second = asyncio.create_task(waiting.run())
        for _ in range(100):
            await asyncio.sleep(0)
        for refused in (waiting.progress(), waiting._change(lambda now: now)):
            with pytest.raises(ServiceNotReadyError, match="operator on node-a leads; try again"):
                await refused
        assert (leader.statistics()["is_leader"], waiting.statistics()["is_leader"]) == (1, 0)
        assert leader.statistics()["parts_wanted"] == len(first().parts) + 1  # with the metadata store
        before = await load_roster(store)
        idle.running.discard("broker-2")  # it would create it, if it led
        assert waiting._roster is None
        assert "broker-2" not in idle.running
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await store.close()
        await until(lambda: "broker-2" in idle.running)
        assert await load_roster(other) == before
        counted = waiting.statistics()
        assert (counted["is_leader"], counted["parts_created"], counted["creations_failed"]) == (1, 1, 0)
        assert counted["looks"] == sum(counted["look_duration"]["counts"])
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await other.close()

    with fast():
        asyncio.run(asyncio.wait_for(scenario(), 60))
