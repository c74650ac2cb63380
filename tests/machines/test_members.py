"""One cluster on four machines, of which three carry a member of etcd that the cluster runs itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machines.chaos import SETTINGS
from tests.machines.cluster import MachineCluster, machine_cluster
from tests.machines.conftest import KeptMachines
from tests.machines.scenarios.members import MEMBER_SCENARIOS
from tests.machines.scenarios.stage import Stage
from tests.patience import patience

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1_200)]

MACHINES = 4


@contextmanager
def etcd_machines(directory: Path) -> Iterator[MachineCluster]:
    directory.chmod(0o755)  # raylets look into it
    config = directory / "settings.toml"
    config.write_text(SETTINGS)
    settings = {"config": str(config), "broker_port": "6650", "gateway_port": "8080"}
    with machine_cluster(directory, MACHINES, metadata="etcd", metadata_members="3", **settings) as made:
        yield made


@pytest.fixture(scope="module")
def kept_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptMachines]:
    with patience():
        kept = KeptMachines(etcd_machines, lambda: Path(tmp_path_factory.mktemp("e")))
        try:
            yield kept
        finally:
            kept.close()


@pytest.fixture
def etcd_set(kept_etcd: KeptMachines) -> MachineCluster:
    return kept_etcd.checked()


@pytest.mark.parametrize("name", MEMBER_SCENARIOS)
def test_nothing_confirmed_is_lost_whatever_happens_to_members(etcd_set: MachineCluster, name: str) -> None:  # I1, I13
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"{name}, seed {seed}")  # shown when this fails
    MEMBER_SCENARIOS[name](Stage(etcd_set, random.Random(seed), print))
