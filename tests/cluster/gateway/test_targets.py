"""Prometheus finds every part of a cluster by the file that the operator keeps, and reads each at its own port."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.cluster.head.watch_files import TARGETS_FILE
from heliograph.metrics.exposition import samples_in
from tests.cluster.support.live_cluster import BACK_TIMEOUT_SECONDS, LiveCluster, start

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WITH_METRICS = ("auditor", "bookie", "broker", "gateway", "metadata", "operator", "replicator")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    """Return a cluster whose operator keeps the list."""
    running = start(tmp_path, f"watched-{uuid.uuid4().hex[:8]}", bookies=3, brokers=1, operator=True)
    try:
        yield running
    finally:
        running.stop()


def targets(cluster: LiveCluster) -> dict[str, str]:
    """Return the addresses of the metrics of the parts by the list, which names all of them before long."""
    deadline = time.monotonic() + BACK_TIMEOUT_SECONDS
    while True:
        wanted = {part.name for part in cluster.report().parts if part.kind in WITH_METRICS}
        file = cluster.home / TARGETS_FILE
        rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
        found = {row["labels"]["name"]: f"{row['labels']['__scheme__']}://{row['targets'][0]}" for row in rows}
        if found and found.keys() == wanted:
            return found
        assert time.monotonic() < deadline, f"the list has {sorted(found)}, wanted are {sorted(wanted)}"
        time.sleep(0.2)


def test_every_part_keeps_a_history(cluster: LiveCluster) -> None:
    url = f"{cluster.state.gateway_url}/admin/heliograph/history"
    deadline = time.monotonic() + BACK_TIMEOUT_SECONDS
    while True:
        told = json.load(urllib.request.urlopen(url, timeout=60))
        found = {name: {series for series, _ in part["series"]} for name, part in told["parts"].items()}
        # The first sample of the operator may be older than its session, without which it tells less.
        if "heliograph_operator_parts_wanted" in found.get("operator", ()) and found.get("metadata"):
            break
        assert time.monotonic() < deadline, told["silent"]
        time.sleep(0.5)
    assert "heliograph_metadata_nodes" in found["metadata"]


def test_every_part_serves_its_own_metrics_at_the_address_in_the_list(cluster: LiveCluster) -> None:
    found = targets(cluster)
    assert len({*found.values()}) == len(found)
    for name, url in found.items():
        text = urllib.request.urlopen(f"{url}/metrics?parts=none", timeout=60).read().decode()
        builds = [labels["part"] for metric, labels, _ in samples_in(text) if metric == "heliograph_build_info"]
        assert builds == [name] or name == "gateway"
        kinds = {metric.split("_")[1] for metric, *_ in samples_in(text)}
        assert name.partition("-")[0].replace("replicator", "auditor") in kinds
        others = {"broker", "bookie", "auditor", "metadata", "operator"}
        assert not kinds & (others - {name.partition("-")[0].replace("replicator", "auditor")})
