"""The cost of a failover for each topic, counted: calls of the metadata store, and ledgers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.fake_ledgers import FakeLedgers
from tests.unit.broker.world import Outcomes, turns

TOPICS = 64
CALLS_MAX = 7  # of the store for a topic besides those for its ledgers: 5 reads of records, a listing and a write
CALLS_OF_ALL_MAX = 150  # besides these, for bundles


class Survivors:
    """Two brokers, of which the first one has served all topics and is gone."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.ledgers = FakeLedgers()
        self.names = [TopicName.parse(f"t-{number}") for number in range(TOPICS)]
        self.outcomes = Outcomes()
        self.calls: Counter[str] = Counter()

    async def broker(self, name: str) -> Broker:
        config = BrokerConfig(name, probe_seconds=0.0)
        broker = Broker(config, self.server.open_session(), self.ledgers)
        await broker.start()
        return broker


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Survivors, Broker]]:
    world = Survivors()
    await initialise(world.server.open_session())
    store = world.server.open_session()
    first = Broker(BrokerConfig("first", probe_seconds=0.0), store, world.ledgers)
    await first.start()
    for name in world.names:
        await first.ownership.resolve(name)
        topic = await first.topics.get(name, may_create=True)
        world.outcomes.publish(topic.ledger, str(name))
    await turns(lambda: len(world.outcomes.confirmed) == TOPICS)
    world.server.expire_session(store.session_id)
    second = await world.broker("second")

    def counted(method: str) -> None:
        real = getattr(MemoryStore, method)

        async def call(store: MemoryStore, *arguments: Any, **options: Any) -> Any:
            world.calls[method] += 1
            return await real(store, *arguments, **options)

        monkeypatch.setattr(MemoryStore, method, call)

    for method in ("get", "exists", "children", "multi"):
        counted(method)
    yield world, second
    await second.stop()
    await first.stop()


async def test_a_topic_is_taken_over_by_few_calls_and_without_a_ledger(world: tuple[Survivors, Broker]) -> None:
    survivors, broker = world
    before = len(survivors.ledgers.ledgers)

    async def opened(name: TopicName) -> WriteState:
        assert (await broker.ownership.resolve(name)).is_us
        return (await broker.topics.get(name)).ledger.state

    assert not broker.topics.loaded, "nothing is opened that no client asks for"
    states = await asyncio.gather(*map(opened, survivors.names))
    assert set(states) == {WriteState.DORMANT}
    assert len(survivors.ledgers.ledgers) == before
    total = sum(survivors.calls.values())
    assert total < CALLS_MAX * TOPICS + CALLS_OF_ALL_MAX, survivors.calls
    assert survivors.calls["multi"] < TOPICS + 20


async def test_only_topics_that_are_published_to_get_a_ledger(world: tuple[Survivors, Broker]) -> None:
    survivors, broker = world
    before = len(survivors.ledgers.ledgers)
    await broker.ownership.resolve(survivors.names[0])
    topics = [await broker.topics.get(name) for name in survivors.names if await _is_owned(broker, name)]
    survivors.calls.clear()
    survivors.outcomes.publish(topics[0].ledger, "a", "b", "c")
    await turns(lambda: len(survivors.outcomes.confirmed) == TOPICS + 3)
    assert len(survivors.ledgers.ledgers) == before + 1
    assert survivors.calls["multi"] == 1, "the record names the ledger"
    await topics[1].subscribe("s", start=0)
    assert len(survivors.ledgers.ledgers) == before + 1


async def _is_owned(broker: Broker, name: TopicName) -> bool:
    return (await broker.ownership.resolve(name)).is_us
