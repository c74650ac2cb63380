"""``helio nodes`` and ``helio bookies list``: a row for each machine with what stops without it, and each bookie."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator.reporting import node_reports
from heliograph.metadata.operator_records import ClusterReport, NodeReport, PartReport
from heliograph.report import asking
from heliograph.report.record import with_since
from tests.unit.cli.test_decommission import helio
from tests.unit.cluster.operator.test_leaving import NODES, first

REPORT = ClusterReport(
    "operator on 10.0.0.1",
    9_000,
    parts=(
        PartReport("bookie-1", "bookie", "ALIVE", address="10.0.0.1:3181", home="10.0.0.1"),
        PartReport("bookie-4", "bookie", "ALIVE", address="tls://10.0.0.1:3182", home="10.0.0.1"),
        PartReport("broker-2", "broker", "ALIVE", address="pulsar://10.0.0.2:6650", home="10.0.0.2"),
        PartReport("bookie-3", "bookie", "MISSING", home="10.0.0.3"),
    ),
    nodes=(NodeReport("10.0.0.1", "ALIVE", 1_000), NodeReport("10.0.0.2", "ALIVE"), NodeReport("10.0.0.3", "AWAY")),
    bookies_available=("bookie-1",),
    bookies_readonly=("bookie-4",),
    ledger_risks={"10.0.0.1": 7, "10.0.0.9": 2},
)


def test_each_machine_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ClusterHome(tmp_path).save(ClusterState("mine", "127.0.0.1:1", "", metadata_url="memory://nodes"))
    monkeypatch.setattr(asking, "ask_report", lambda state, secret: REPORT)
    command = ("nodes", "--home", str(tmp_path), "--namespace", "mine")
    rows = json.loads(helio(*command, "--json").stdout)["nodes"]
    assert [(row["address"], row["state"], row["parts"], row["ledgers_stopping"]) for row in rows] == [
        ("10.0.0.1", "ALIVE", ["bookie-1", "bookie-4"], 7),
        ("10.0.0.2", "ALIVE", ["broker-2"], 0),
        ("10.0.0.3", "AWAY", ["bookie-3"], 0),
    ]
    shown: Any = helio(*command)
    assert "ledgers that stop without it" in shown.output
    assert "bookie-1, bookie-4" in shown.output


def test_each_bookie_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ClusterHome(tmp_path).save(ClusterState("mine", "127.0.0.1:1", "", metadata_url="memory://nodes"))
    monkeypatch.setattr(asking, "ask_report", lambda state, secret: replace(REPORT, bookies_draining=("bookie-4",)))
    command = ("bookies", "list", "--home", str(tmp_path), "--namespace", "mine")
    rows = json.loads(helio(*command, "--json").stdout)["bookies"]
    assert [(row["name"], row["state"], row["address"], row["home"]) for row in rows] == [
        ("bookie-1", "writable", "10.0.0.1:3181", "10.0.0.1"),
        ("bookie-4", "draining", "tls://10.0.0.1:3182", "10.0.0.1"),
        ("bookie-3", "away", "", "10.0.0.3"),
    ]
    assert "tls://10.0.0.1:3182" in helio(*command).output


def test_machines_that_are_away_or_leave_are_told_and_since_when() -> None:
    roster = rosters.with_leaving_node(first(), NODES[1].address)
    found = node_reports(roster, NODES[:2])
    assert found == [
        NodeReport("10.0.0.1", "ALIVE"), NodeReport("10.0.0.2", "LEAVING"), NodeReport("10.0.0.3", "AWAY"),
    ]  # fmt: skip
    before = with_since(ClusterReport("one", 5, nodes=tuple(found)), None)
    later = with_since(ClusterReport("one", 9, nodes=tuple(node_reports(roster, NODES))), before)
    assert [node.since_ms for node in later.nodes] == [5, 5, 9]
    assert with_since(replace(later, as_of_ms=12), later).nodes == later.nodes
