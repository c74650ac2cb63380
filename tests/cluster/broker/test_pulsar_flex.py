"""A client that is not ours and not of the C++ family: npm's pulsar-flex, which waits for every acknowledgement."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster

PACKAGE = "pulsar-flex@1.1.1"
INSTALL_SECONDS_MAX = 120
RUN_SECONDS_MAX = 300
SCRIPT = Path(__file__).with_name("pulsar_flex.js")


def install(folder: Path) -> None:
    """Install the package and its dependencies into a folder of the test."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not on this machine")
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix", str(folder)]
    try:
        done = subprocess.run(
            ["npm", "install", *options, PACKAGE],
            capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not bring {PACKAGE} in {INSTALL_SECONDS_MAX} s")
    if done.returncode:
        pytest.skip(f"npm cannot bring {PACKAGE}: {done.stderr.strip()[-300:]}")


@pytest.mark.timeout(INSTALL_SECONDS_MAX + RUN_SECONDS_MAX + 60)
def test_pulsar_flex_publishes_consumes_and_acknowledges(tmp_path: Path) -> None:
    folder = tmp_path / "npm"
    folder.mkdir()
    install(folder)
    with broker_cluster(tmp_path / "cluster") as cluster:
        done = subprocess.run(
            ["node", str(SCRIPT), cluster.service_url.removeprefix("pulsar://")],
            capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False,
            env={**os.environ, "NODE_PATH": str(folder / "node_modules")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2_000:]
        found = json.loads(done.stdout)
        whole = [[f"m{n}", str(n), 0] for n in range(33)]
        assert found["exclusive"] == whole
        assert found["failover"] == whole
        assert sorted(found["keyshared"]) == sorted(whole)
        again = [["m7", "7", 1]]
        assert sorted(found["shared"]) == sorted([one for one in whole if one[0] != "m7"] + again)
        for name in found:
            assert backlog(cluster, f"flex-{name}") == 0, "an acknowledgement was answered when it was durable"


def backlog(cluster: BrokerCluster, topic: str) -> int:
    found: int = cluster.run(cluster.admin.topic_stats(topic))["subscriptions"]["sub"]["msgBacklog"]
    return found
