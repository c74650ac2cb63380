"""One set of machines for all tests: each scenario leaves it healthy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.chaos import machines
from tests.machines.cluster import MachineCluster
from tests.patience import patience


@pytest.fixture(scope="session")
def machine_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineCluster]:
    with patience(), machines(Path(tmp_path_factory.mktemp("m"))) as made:
        yield made
