"""The fixtures of the tests of every metadata backend."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.contracts.metadata.backends import BACKENDS, Run, backends_here, run_on


@pytest.fixture(params=backends_here())
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return partial(run_on, BACKENDS[request.param], tmp_path)
