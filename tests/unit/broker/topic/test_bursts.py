"""Many topics that open or close together, counted: what a ping of the session has to wait behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.topic import topics as module
from heliograph.actors.broker.topic.state import TopicState
from heliograph.actors.broker.topic.topics import CLOSES_AT_ONCE_MAX, LOADS_AT_ONCE_MAX
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.fake_ledgers import FakeLedgers
from tests.waits import until

TOPICS = 500
OTHERS = 8  # calls of the broker's own work
METHODS = ("get", "exists", "children", "children_from", "multi")


class CallsInFlight:
    """Counts the calls of the store that were made and not answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = self.most = 0
        for method in METHODS:
            monkeypatch.setattr(MemoryStore, method, self._counted(getattr(MemoryStore, method)))

    def _counted(self, real: Any) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            self._now += 1
            self.most = max(self.most, self._now)
            try:
                return await real(*arguments, **options)
            finally:
                self._now -= 1

        return call


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    server = MemoryServer()
    await initialise(server.open_session())
    broker = Broker(BrokerConfig("first", probe_seconds=0.0), server.open_session(), FakeLedgers())
    await broker.start()
    yield broker
    await broker.stop()


async def test_few_of_many_topics_ask_the_store_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [TopicName.parse(f"t-{number}") for number in range(TOPICS)]
    for name in names:
        await broker.ownership.resolve(name)
    calls = CallsInFlight(monkeypatch)
    topics = await asyncio.gather(*(broker.topics.get(name, may_create=True) for name in names))
    assert 1 < calls.most <= LOADS_AT_ONCE_MAX + OTHERS
    for topic in topics:
        await topic.subscribe("s", start=0)
    calls.most = 0
    await broker.topics.stop(60.0)
    assert broker.topics.count == 0
    assert {topic.state.name for topic in topics} == {"CLOSED"}, "all were closed in good order"
    assert 1 < calls.most <= CLOSES_AT_ONCE_MAX + OTHERS


async def test_topics_that_cannot_be_closed_soon_do_not_hold_up_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bookies do not answer, and they wait for what is in flight."""
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.01)
    names = [TopicName.parse(f"t-{number}") for number in range(CLOSES_AT_ONCE_MAX + 2)]
    for name in names:
        await broker.ownership.resolve(name)
    *slow, one, other = [await broker.topics.get(name, may_create=True) for name in names]

    async def close_last() -> None:
        await until(lambda: {one.state, other.state} == {TopicState.CLOSED})

    for topic in slow:
        monkeypatch.setattr(topic, "close", close_last)
    await broker.topics.stop(60.0)
    assert {one.state, other.state} == {TopicState.CLOSED}
