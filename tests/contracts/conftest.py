"""The fixtures of the tests of every metadata backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contracts.metadata.backends import BACKENDS, Backend, backends_here, fresh


@pytest.fixture(params=backends_here())
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    made = fresh(BACKENDS[request.param], tmp_path)
    await made.start()
    yield made
    await made.stop()
