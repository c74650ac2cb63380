"""The surroundings of a broker in memory, and one session of its metadata store."""

from __future__ import annotations

import pytest

from heliograph.metadata.backends.memory import MemoryStore
from tests.unit.broker.world import World


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def store(world: World) -> MemoryStore:
    return await world.session()
