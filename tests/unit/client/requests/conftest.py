"""A cluster that the tests of this folder share, and a topic of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

import heliograph


@pytest.fixture
async def client(cluster: heliograph.LocalCluster) -> AsyncIterator[heliograph.AsyncClient]:
    async with await heliograph.connect_async(cluster.service_url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """Return the name of a topic that no other test has."""
    return f"asked-{uuid.uuid4().hex[:12]}"
