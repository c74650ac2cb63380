"""Operators that are elected or restart: calls wait for the one that leads, and of two one acts and the other
refuses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.exceptions

from heliograph.base.errors import ConflictError, ServiceNotReadyError
from heliograph.client import discovery
from heliograph.cluster.operator import calls
from heliograph.cluster.operator.operator import Operator, OperatorSettings
from heliograph.cluster.operator.planning import OperatorRules
from heliograph.cluster.operator.storage import load_roster, save_roster
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise
from tests.unit.cluster.operator.test_leaving import PlayedCluster, fast, first
from tests.waits import until


class Method:
    def remote(self, *arguments: Any) -> tuple[Any, ...]:
        return arguments


class OperatorHandle:
    scale = Method()


class Stage:
    """Answers of calls one after the other; the last one for ever. Time goes on by the pauses between calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers, self.asked, self.now = list(answers), 0, 0.0
        monkeypatch.setattr(discovery, "actor", lambda name, namespace: OperatorHandle())
        monkeypatch.setattr(ray, "get", self.get)
        monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get(self, call: tuple[Any, ...], timeout: float) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def restarting() -> ray.exceptions.ActorUnavailableError:
    return ray.exceptions.ActorUnavailableError("The actor is restarting.", None)


def refusal(error: Exception) -> ray.exceptions.RayError:
    return ray.exceptions.RayTaskError("scale", "trace", error)  # type: ignore[no-untyped-call]


def test_an_operator_that_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, restarting(), restarting(), {"wanted": 5})
    assert calls.ask_operator("heliograph", "scale", "bookie", 5) == {"wanted": 5}
    assert stage.asked == 3


def test_an_operator_that_does_not_come_back_is_named_in_words_of_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, restarting())
    monkeypatch.setattr(calls, "ELECTED_SECONDS", 7.0)
    with pytest.raises(ServiceNotReadyError, match="the operator is restarting: try again"):
        calls.ask_operator("heliograph", "scale", "bookie", 5)
    assert 7 < stage.now < 7 + 2 * calls.POLL_SECONDS


def test_a_refusal_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, refusal(ConflictError("two wishes")))
    with pytest.raises(ConflictError, match="two wishes"):
        calls.ask_operator("heliograph", "scale", "bookie", 5)
    assert stage.asked == 1


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
