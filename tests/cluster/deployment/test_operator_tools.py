"""What an operator asks a running cluster: logs through the actors, and the report."""

from __future__ import annotations

import asyncio
import stat
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

import heliograph
from heliograph.base.home import ClusterHome
from heliograph.client.admin.over_http import GatewayCalls
from heliograph.client.admin.part_access import PartAccess
from heliograph.cluster.logs.gathering import ClusterLogs
from heliograph.metadata.connect import connect_store
from heliograph.report.asking import ask_report
from tests.cluster.support.bookie_metadata import all_ledgers
from tests.cluster.support.live_cluster import LiveCluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_logs_are_in_the_home_and_come_from_other_machines_through_the_actors(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    directory = cluster.home / "logs"
    assert {"metadata.log", "bookie-1.log", "broker-1.log", "auditor.log", "gateway.log"} <= {
        path.name for path in directory.iterdir()
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    parts = ("bookie-1", "broker-1")
    here = ClusterLogs(cluster.home, cluster.namespace, parts).ends(since_ms=0, level="INFO")
    elsewhere = ClusterLogs(tmp_path, cluster.namespace, parts)  # a machine without these files
    found = elsewhere.ends(since_ms=0, level="INFO")
    assert {line.part for line in found} == set(parts)
    assert set(here) <= set(found)
    assert any(line.message.startswith("serves as ") for line in found)
    assert not elsewhere.silent


def test_lines_that_are_written_later_are_followed(cluster: LiveCluster, tmp_path: Path) -> None:
    logs = ClusterLogs(tmp_path, cluster.namespace, ["bookie-1"])
    logs.ends(since_ms=0, level="INFO")
    old = cluster.sigkill("bookie-1")
    cluster.wait_back("bookie-1", old)
    lines: list[str] = []

    def is_told() -> bool:
        lines.extend(line.message for line in logs.further(level="INFO"))
        return any(line.startswith("serves as ") for line in lines)

    wait_for(is_told, 60, "the log does not tell of the restart")
    assert sum(line.startswith("process ") for line in lines) == 1


def test_the_gateway_passes_on_logs_of_parts(cluster: LiveCluster, tmp_path: Path) -> None:
    gateway = GatewayCalls(cluster.state.gateway_url, cluster.namespace)
    parts = ("bookie-1", "broker-1")
    through = ClusterLogs(tmp_path, cluster.namespace, parts, gateway)
    told = through.ends(since_ms=0, level="INFO")
    assert not through.silent
    assert set(ClusterLogs(cluster.home, cluster.namespace, parts).ends(since_ms=0, level="INFO")) >= set(told)
    assert {line.part for line in told} == set(parts)
    through.further(level="INFO")
    assert not through.silent


def test_the_gateway_tells_the_metrics_of_all_parts(cluster: LiveCluster) -> None:
    cluster.admin.publish("measured", [b"x"])
    with urllib.request.urlopen(f"{cluster.state.gateway_url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    for part in ("bookie-1", "bookie-2", "bookie-3", "broker-1", "auditor"):
        assert f'heliograph_part_scraped{{part="{part}"}} 1' in text, part
    assert 'topic="persistent://public/default/measured"' in text
    assert 'heliograph_auditor_is_leader{worker="auditor"} 1' in text
    assert 'heliograph_bookie_journal_sync_latency_seconds_count{bookie="bookie-1"}' in text


def test_the_gateway_and_the_metadata_store_tell_the_same_report(cluster: LiveCluster) -> None:
    """This cluster has no operator, so that the report is of what is registered."""

    def is_same() -> bool:
        secret = ClusterHome(cluster.home).secret()
        through, without = cluster.report(), ask_report(replace(cluster.state, gateway_url=""), secret)
        return through.is_healthy and through == without and through.parts[0].name == "bookie-1"

    wait_for(is_same, 240, "the two differ")


def test_the_auditor_tells_of_ledgers_and_of_repair(cluster: LiveCluster, topic: str) -> None:
    async def a_ledger() -> int:
        store = await connect_store(cluster.metadata_url)
        try:
            return (await all_ledgers(store))[-1].ledger_id
        finally:
            await store.close()

    cluster.admin.create_topic(topic)
    with heliograph.connect(namespace=cluster.namespace) as client, client.producer(topic) as producer:
        producer.send(b"0")
    ledger_id = asyncio.run(a_ledger())
    ask = PartAccess(cluster.namespace, None, lambda: None).ask_one
    found = ask("auditor", "describe_ledger", ledger_id)
    assert found["ledger"]["ledger_id"] == ledger_id
    assert all(bookie["is_alive"] for bookie in found["bookies"].values())
    ask("auditor", "pause", True, True)
    try:
        status = ask("auditor", "repair_status")
        assert (status["is_paused"], status["are_scrubs_paused"]) == (True, True)
        assert cluster.report().is_repair_paused
    finally:
        ask("auditor", "pause", False, False)
    assert not ask("auditor", "repair_status")["is_paused"]
