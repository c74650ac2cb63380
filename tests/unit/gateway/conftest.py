"""A gateway over a world in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import Gateway


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway() as made:
        yield made


@pytest.fixture
def topic(gateway: Gateway) -> FakeTopic:
    """The topic that paths of tests name."""
    return gateway.world.add()
