"""Boards, alerts and rules: they name what exists, and Prometheus takes them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from heliograph.metrics.exposition import exposition
from heliograph.metrics.metric import Histogram, Metric, MetricKind
from heliograph.metrics.table import METRICS
from heliograph.monitoring.alerts import ALERTS, Alert
from heliograph.monitoring.boards import BOARDS, Board, board_json
from heliograph.monitoring.prometheus import RECORDED, RULES_FILE, configuration, rules, runbooks_page
from tests.prometheus_server import metric_problems, program
from tests.unit.cli.test_examples import ALL

pytestmark = pytest.mark.slow

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
    known |= {"component"} if "heliograph_gateway_" in alert.expression else set()
    known |= {"instance", "name"} if "up{" in alert.expression else set()
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


def test_promtool_finds_nothing_wrong_with_the_text_of_all_metrics() -> None:
    def value(metric: Metric) -> Any:
        return Histogram(metric.bounds).told() if metric.kind is MetricKind.HISTOGRAM else 1

    found = {name: [(("x",) * len(metric.labels), value(metric))] for name, metric in METRICS.items()}
    text = exposition(METRICS.values(), found)
    assert {*re.findall(r"# HELP (\w+)", text)} == METRICS.keys()
    assert metric_problems(text) == ""
    assert "x_total" in metric_problems("# HELP x_total x\n# TYPE x_total gauge\nx_total 1\n")


def slow(histogram: str, label: str, below: str, above: str) -> dict[str, str]:
    """Return the series of a histogram all of whose values are between two bounds."""
    name = f"heliograph_{histogram}_latency_seconds_bucket"
    counts = {below: "0x60", above: "0+100x60", "+Inf": "0+100x60"}
    return {f'{name}{{{label}, le="{bound}"}}': values for bound, values in counts.items()}


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
    "no worker of repair is there": (
        {"heliograph_ledgers_underreplicated": "7x60"},
        {"HeliographUnderReplicated", "HeliographRepairStalled"},
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
            'heliograph_part_up{part="bookie-1", kind="bookie"}': "0x60",
        },
        {"HeliographDiskFull"},
    ),
    "a bookie with a full disk dies": (
        {
            'heliograph_bookie_is_disk_full{bookie="bookie-1"}': "1x9 stale",
            'heliograph_bookie_is_read_only{bookie="bookie-1"}': "1x9 stale",
            'heliograph_part_up{part="bookie-1", kind="bookie"}': "0x60",
        },
        {"HeliographPartDown"},
    ),
    "a consumer stopped": (
        {
            'heliograph_subscription_backlog_entries{topic="t", subscription="s", namespace="n"}': "0+60x60",
            'heliograph_subscription_acknowledged_entries_rate{topic="t", subscription="s", namespace="n"}': "0x60",
        },
        {"HeliographSubscriptionFallsBehind"},
    ),
    "dead letters wait for who sends them back": (
        {
            'heliograph_subscription_backlog_entries{topic="t", subscription="console-retry"}': "0+60x60",
            'heliograph_subscription_acknowledged_entries_rate{topic="t", subscription="console-retry"}': "0x60",
        },
        set(),
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
    "the gateway is gone": ({'up{job="heliograph", component="gateway"}': "0x60"}, {"HeliographGatewayDown"}),
    "a part gives no metrics": (
        {'up{job="heliograph", component="bookie", instance="b:9700"}': "1 1 0x60"},
        {"HeliographPartNotScraped"},
    ),
    "the metadata store serves, and gives no metrics": (
        {'up{job="heliograph", component="metadata", name="metadata"}': "1 1 0x60"},
        {"HeliographPartNotScraped"},
    ),
    "a part that is down gives no metrics": (
        {
            'up{job="heliograph", component="bookie", name="bookie-2"}': "1 1 0x60",
            'heliograph_part_up{part="bookie-2", kind="bookie"}': "1 1 0x60",
        },
        {"HeliographPartDown"},
    ),
    "the operator is gone, and parts moved since": (
        {
            'up{job="heliograph", component="operator", name="operator"}': "1 1 0x60",
            'up{job="heliograph", component="broker", name="broker-1"}': "1 1 0x60",
            "heliograph_report_age_seconds": "5 5 60+60x60",
        },
        {"HeliographNoOperator"},
    ),
    "the metadata store is away": (
        {
            'heliograph_broker_metadata_silent_seconds{broker="broker-1"}': "0 60+60x60",
            "heliograph_report_age_seconds": "60+60x60",
        },
        {"HeliographMetadataAway"},
    ),
    "the metadata store is slow": (
        slow("broker_metadata", 'broker="broker-1"', "0.25", "1.0"),
        {"HeliographSlowMetadata"},
    ),
    "ledgers have one copy left": (
        {
            'heliograph_auditor_ledgers_last_copy{worker="auditor"}': "0 0 5x60",
            'heliograph_auditor_repaired_bytes_total{worker="auditor"}': "0+1000x60",
        },
        {"HeliographLastCopy"},
    ),
    "brokers fence each other": (
        {
            'heliograph_broker_topics_fenced_total{broker="broker-1"}': "0+2x60",
            'heliograph_broker_topics_fenced_total{broker="broker-2"}': "0+2x60",
        },
        {"HeliographFenceStorm"},
    ),
    "topics move in good order": ({'heliograph_broker_topics_fenced_total{broker="broker-1"}': "3x60"}, set()),
    "the oldest message is above the quota": (
        {
            'heliograph_subscription_oldest_unacknowledged_seconds{topic="t", subscription="s"}': "0+60x60",
            'heliograph_subscription_age_limit_seconds{topic="t", subscription="s"}': "600x60",
        },
        {"HeliographOldestUnacknowledged"},
    ),
    "the oldest message has no limit": (
        {'heliograph_subscription_oldest_unacknowledged_seconds{topic="t", subscription="s"}': "0+60x60"},
        set(),
    ),
    "a clock made a step": (
        {'heliograph_part_clock_skew_seconds{part="bookie-1"}': "0x26 3x40"},
        {"HeliographClockStep"},
    ),
    "a clock drifts": ({'heliograph_part_clock_skew_seconds{part="bookie-1"}': "0+0.1x60"}, set()),
    "a certificate ends": (
        {'heliograph_bookie_certificate_end_timestamp_seconds{bookie="bookie-1"}': "864000x120"},
        {"HeliographCertificateEnds"},
    ),
    "a certificate is good for long": (
        {
            'heliograph_broker_certificate_end_timestamp_seconds{broker="broker-1"}': "8640000x120",
            'heliograph_broker_certificate_end_timestamp_seconds{broker="without-tls"}': "0x120",
        },
        set(),
    ),
    "a journal is slow": (slow("bookie_journal_sync", 'bookie="bookie-1"', "0.05", "0.1"), {"HeliographSlowJournal"}),
    "publishing is slow": (slow("broker_publish", 'broker="broker-1"', "0.25", "1.0"), {"HeliographSlowPublish"}),
    "a journal is as fast as it should be": (slow("bookie_journal_sync", 'bookie="bookie-1"', "0.01", "0.025"), set()),
    "publishing is limited": ({"heliograph_publishing_problems": "1x60"}, {"HeliographPublishingDegraded"}),
    "entries have no good copy": ({"heliograph_ledgers_damaged": "2x60"}, {"HeliographLedgersDamaged"}),
    "repair is paused for a day": ({"heliograph_repair_is_paused": "1x1440"}, {"HeliographRepairPaused"}),
    "a bookie is emptied": (
        {'heliograph_bookie_is_read_only{bookie="bookie-1"}': "1x60"},
        {"HeliographBookieReadOnly"},
    ),
    "consumers acknowledge nothing": (
        {'heliograph_subscription_is_blocked{topic="t", subscription="s"}': "1x60"},
        {"HeliographSubscriptionBlocked"},
    ),
    "a disk damages entries": (
        {'heliograph_bookie_entries_damaged_total{bookie="bookie-1"}': "0x20 3x40"},
        {"HeliographDamagedEntries"},
    ),
    "a part ends again and again": (
        {'heliograph_part_restarts_total{part="broker-1"}': "0+1x60"},
        {"HeliographPartFlaps"},
    ),
    "a clock is wrong": ({'heliograph_part_clock_skew_seconds{part="bookie-1"}': "-9x60"}, {"HeliographClockSkew"}),
    "a part needs too much memory": (
        {
            'heliograph_bookie_memory_bytes{bookie="bookie-1"}': "200x60",
            'heliograph_bookie_memory_budget_bytes{bookie="bookie-1"}': "100x60",
        },
        {"HeliographMemory"},
    ),
    "the auditor is gone": (
        {
            'heliograph_auditor_is_leader{worker="auditor"}': "0x60",
            'heliograph_part_up{part="auditor", kind="auditor"}': "0x60",
        },
        {"HeliographNoAuditor", "HeliographPartDown"},
    ),
}
EVALUATED = {  # others after half an hour
    "a certificate ends": "90m",
    "a certificate is good for long": "90m",
    "repair is paused for a day": "7h",
}
WELL = {
    'up{job="heliograph", component="gateway"}': "1x480",
    "heliograph_report_age_seconds": "5x480",
    'heliograph_part_up{part="auditor", kind="auditor"}': "1x480",
    'heliograph_auditor_is_leader{worker="auditor"}': "1x480",
    "heliograph_ledgers_underreplicated": "0x480",
    "heliograph_repair_is_paused": "0x480",
    "heliograph_publishing_problems": "0x480",
    'heliograph_bookie_free_bytes{bookie="bookie-1"}': "1000000x480",
    'heliograph_bookie_is_disk_full{bookie="bookie-1"}': "0x480",
    'heliograph_bookie_is_read_only{bookie="bookie-1"}': "0x480",
}


def test_each_alert_fires_in_a_story() -> None:
    assert set().union(*(firing for _, firing in STORIES.values())) == {alert.name for alert in ALERTS}


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
                "eval_time": EVALUATED.get(story, "30m"),
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


@pytest.mark.parametrize(("labels", "named"), [('component="gateway"', "gateway"), ('broker="b-1"', "b-1")])
def test_a_summary_names_the_part(labels: str, named: str, tmp_path: Path) -> None:
    alert = next(alert for alert in ALERTS if alert.name == "HeliographMemory")
    part = "gateway" if "component" in labels else "broker"
    series = {f"heliograph_{part}_memory_bytes": "2x30", f"heliograph_{part}_memory_budget_bytes": "1x30"}
    expected = {
        "exp_labels": {"severity": alert.severity.value} | dict([labels.replace('"', "").split("=")]),
        "exp_annotations": {
            "summary": f"{named} uses more memory than its budget",
            "description": alert.meaning,
            "runbook_url": f"x#{alert.name.lower()}",
        },
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": f"{name}{{{labels}}}", "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "15m", "alertname": alert.name, "exp_alerts": [expected]}],
    }
    (tmp_path / "rules.yml").write_text(rules("x"))
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": [test]}))
    ran = subprocess.run(
        [program("promtool"), "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
