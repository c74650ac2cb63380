"""A broker in memory: its surroundings, a session of its metadata store, its topic, and one client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.metadata.backends.memory import MemoryStore
from tests.unit.broker.clients import Client, LoneBroker
from tests.unit.broker.topic_world import topic_on
from tests.unit.broker.world import World


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def store(world: World) -> MemoryStore:
    return await world.session()


@pytest.fixture
async def topic(world: World, store: MemoryStore) -> AsyncIterator[BrokerTopic]:
    opened = await topic_on(world, store)
    yield opened
    await opened.close()


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    async with LoneBroker("orders") as running:
        yield running


@pytest.fixture
async def client(lone: LoneBroker) -> AsyncIterator[Client]:
    made = Client(lone.broker)
    yield made
    made.leave()
