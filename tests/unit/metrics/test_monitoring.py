"""Boards, alerts and rules: they name what exists, and Prometheus takes them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from heliograph.metrics.metric import MetricKind
from heliograph.metrics.table import METRICS
from heliograph.monitoring.alerts import ALERTS, Alert
from heliograph.monitoring.boards import BOARDS, Board, board_json
from heliograph.monitoring.prometheus import RECORDED, RULES_FILE, configuration, rules, runbooks_page
from tests.prometheus_server import program
from tests.unit.cli.test_examples import ALL

NAME = re.compile(r"(?<![:\w])heliograph_\w+")
GROUPED = re.compile(r"by \(([\w, ]+)\)\s*\((?:rate\()?(heliograph_\w+)")
COMMAND = re.compile(r"`helio ([a-z-]+)(?: ([a-z-]+))?")
EXPRESSIONS = [
    *RECORDED.values(),
    *(alert.expression for alert in ALERTS),
    *(query for board in BOARDS for panel in board.panels for query in panel.queries.values()),
]


def metric_of(series: str) -> str:
    base = re.sub(r"_(?:bucket|sum|count)$", "", series)
    return base if base in METRICS and METRICS[base].kind is MetricKind.HISTOGRAM else series


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_name_metrics_and_labels_that_exist(expression: str) -> None:
    names = NAME.findall(expression)
    assert all(metric_of(name) in METRICS for name in names), names
    assert names or "up{" in expression
    for labels, name in GROUPED.findall(expression):
        known = {*METRICS[metric_of(name)].labels, *(("le",) if name.endswith("_bucket") else ())}
        assert {label.strip() for label in labels.split(",")} <= known, expression
    for counter in [name for name in names if METRICS[metric_of(name)].kind is MetricKind.COUNTER]:
        assert re.search(rf"(?:rate|increase)\({counter}\[", expression), f"{counter} alone only grows"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_says_what_to_do_by_commands_that_exist(alert: Alert) -> None:
    page = runbooks_page("x")
    assert f"\n## {alert.name}\n" in page
    assert alert.steps
    assert alert.meaning.endswith(".")
    known = {label for name in NAME.findall(alert.expression) for label in METRICS[metric_of(name)].labels}
    assert {*re.findall(r"\$labels\.(\w+)", alert.summary)} <= known
    for group, name in COMMAND.findall(" ".join(alert.steps)):
        assert group in ALL or f"{group} {name}" in ALL, f"helio {group} {name}"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_is_what_grafana_loads(board: Board) -> None:
    found = json.loads(board_json(board))
    assert len({panel["title"] for panel in found["panels"]}) == len(found["panels"])
    assert all(panel["description"] and panel["targets"] for panel in found["panels"])
    spots = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]}
    assert len(spots) == len(found["panels"])
    assert "$namespace" not in board_json(board) or len(found["templating"]["list"]) == 2


def test_promtool_takes_the_configuration_and_the_rules(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(configuration("https://gateway:8080", "", "", str(tmp_path / "ray.json")))
    (tmp_path / RULES_FILE).write_text(rules())
    ran = subprocess.run(
        [program("promtool"), "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(RECORDED) + len(ALERTS)} rules found" in ran.stdout


# Series as Prometheus would have them, one sample a minute, and the alerts that fire after 30 minutes.
STORIES: dict[str, tuple[dict[str, str], set[str]]] = {
    "all is well": ({}, set()),
    "a bookie is dead, repair makes its copies": (
        {
            'heliograph_part_up{part="bookie-2", kind="bookie"}': "1 1 0x40",
            "heliograph_ledgers_underreplicated": "0 0 7x40",
            'heliograph_auditor_repaired_bytes_total{worker="auditor"}': "0+1000x60",
        },
        {"HeliographPartDown", "HeliographUnderReplicated"},
    ),
    "repair stands still": (
        {
            "heliograph_ledgers_underreplicated": "7x60",
            'heliograph_auditor_repaired_bytes_total{worker="auditor"}': "1000x60",
        },
        {"HeliographUnderReplicated", "HeliographRepairStalled"},
    ),
    "repair is paused": (
        {
            "heliograph_ledgers_underreplicated": "7x60",
            "heliograph_repair_is_paused": "1x60",
            'heliograph_auditor_repaired_bytes_total{worker="auditor"}': "1000x60",
        },
        {"HeliographUnderReplicated"},
    ),
    "a disk fills": ({'heliograph_bookie_free_bytes{bookie="bookie-1"}': "10000-100x60"}, {"HeliographDiskFilling"}),
    "a disk is full": (
        {
            'heliograph_bookie_is_disk_full{bookie="bookie-1"}': "1x60",
            'heliograph_bookie_is_read_only{bookie="bookie-1"}': "1x60",
        },
        {"HeliographDiskFull"},
    ),
    "a consumer stopped": (
        {
            'heliograph_subscription_backlog_entries{topic="t", subscription="s", namespace="n"}': "0+60x60",
            'heliograph_subscription_acknowledged_entries_rate{topic="t", subscription="s", namespace="n"}': "0x60",
        },
        {"HeliographSubscriptionFallsBehind"},
    ),
    "a consumer works its backlog off": (
        {
            'heliograph_subscription_backlog_entries{topic="t", subscription="s", namespace="n"}': "90000-60x60",
            'heliograph_subscription_acknowledged_entries_rate{topic="t", subscription="s", namespace="n"}': "1x60",
        },
        set(),
    ),
    "a broker does not get its own messages": (
        {'heliograph_broker_is_probe_failing{broker="broker-1"}': "0 0 1x60"},
        {"HeliographProbeFails"},
    ),
    "the operator is gone": ({"heliograph_report_age_seconds": "9999x60"}, {"HeliographNoOperator"}),
    "the gateway is gone": ({'up{job="heliograph"}': "0x60"}, {"HeliographGatewayDown"}),
    "the auditor is gone": (
        {
            'heliograph_auditor_is_leader{worker="auditor"}': "0x60",
            'heliograph_part_up{part="auditor", kind="auditor"}': "0x60",
        },
        {"HeliographNoAuditor", "HeliographPartDown"},
    ),
}
WELL = {
    'up{job="heliograph"}': "1x60",
    "heliograph_report_age_seconds": "5x60",
    'heliograph_part_up{part="auditor", kind="auditor"}': "1x60",
    'heliograph_auditor_is_leader{worker="auditor"}': "1x60",
    "heliograph_ledgers_underreplicated": "0x60",
    "heliograph_repair_is_paused": "0x60",
    "heliograph_publishing_problems": "0x60",
    'heliograph_bookie_free_bytes{bookie="bookie-1"}': "1000000x60",
    'heliograph_bookie_is_disk_full{bookie="bookie-1"}': "0x60",
    'heliograph_bookie_is_read_only{bookie="bookie-1"}': "0x60",
}


@pytest.mark.parametrize("story", STORIES)
def test_exactly_the_right_alerts_fire(story: str, tmp_path: Path) -> None:
    series, firing = STORIES[story]
    # What promtool expects of an alert are its labels and annotations, too: so the series ALERTS is asked.
    names = sorted(f'{{alertname="{name}"}}' for name in firing)
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in {**WELL, **series}.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "30m",
                "exp_samples": [{"labels": name, "value": 1} for name in names],
            }
        ],
    }
    (tmp_path / "rules.yml").write_text(rules())
    (tmp_path / "test.yml").write_text(
        json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]})
    )
    ran = subprocess.run(
        [program("promtool"), "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
