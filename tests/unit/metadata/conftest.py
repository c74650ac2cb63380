"""A metadata server in memory."""

from __future__ import annotations

import pytest

from heliograph.metadata.backends.memory import MemoryServer


@pytest.fixture
async def server() -> MemoryServer:
    return MemoryServer()
