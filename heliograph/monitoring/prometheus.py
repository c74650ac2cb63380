"""The configuration and the rules of Prometheus (pure). JSON is YAML, and JSON is what is written."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from heliograph.monitoring.alerts import ALERTS, JOB, p99

RULES_FILE = "heliograph-rules.yml"
SCRAPE_SECONDS = 15
RAY_LIST = "prom_metrics_service_discovery.json"  # in which the head of Ray lists the agents of its nodes
RUNBOOKS = "docs/operations/runbooks.md"
# Sums and percentiles that boards of large clusters ask for again and again; named level:metric:operations.
RECORDED = {
    "cluster:heliograph_broker_in_bytes:rate5m": "sum(rate(heliograph_broker_in_bytes_total[5m]))",
    "cluster:heliograph_broker_publish_latency_seconds:p99_5m": (
        "histogram_quantile(0.99, sum by (le) (rate(heliograph_broker_publish_latency_seconds_bucket[5m])))"
    ),
    "bookie:heliograph_bookie_journal_sync_latency_seconds:p99_5m": p99(
        "heliograph_bookie_journal_sync_latency_seconds", "bookie"
    ),
    "broker:heliograph_broker_metadata_latency_seconds:p99_5m": p99(
        "heliograph_broker_metadata_latency_seconds", "broker"
    ),
    "namespace:heliograph_subscription_oldest_unacknowledged_seconds:max": (
        "max by (namespace) (heliograph_subscription_oldest_unacknowledged_seconds)"
    ),
    "namespace:heliograph_topic_in_messages_rate:sum": "sum by (namespace) (heliograph_namespace_in_messages_rate)",
    "cluster:heliograph_gateway_http_requests_failed:ratio_rate5m": (
        'sum(rate(heliograph_gateway_http_requests_total{status=~"5.."}[5m])) '
        "/ sum(rate(heliograph_gateway_http_requests_total[5m]))"
    ),
    "cluster:heliograph_bookie_free_bytes:predict_4h": (
        "min(predict_linear(heliograph_bookie_free_bytes[1h], 4 * 3600))"
    ),
    "cluster:heliograph_auditor_repaired_bytes:rate5m": "sum(rate(heliograph_auditor_repaired_bytes_total[5m]))",
}


def configuration(
    gateway_url: str,
    token_file: str = "",
    ca_file: str = "",
    ray_list: str = "",
    targets_file: str = "",
    *,
    with_pulsar_names: bool = False,
) -> str:
    """Return a whole ``prometheus.yml`` that scrapes a cluster, and takes the rules beside it.

    Args:
        targets_file: there, too: the file that the operator keeps, which names the parts; empty: the gateway is asked
            for the metrics of all parts.
        with_pulsar_names: scrape the names of Pulsar and BookKeeper as well, with the labels that their boards ask for.
        gateway_url: ``http://host:port`` or ``https://host:port``.
        token_file: on the machine of Prometheus: what it shows to the gateway; empty: nothing.
        ca_file: there, too: who signs the gateway's certificate; empty: those that the machine trusts.
        ray_list: there, too: the file in which the head of Ray lists what to scrape of Ray itself; empty: nothing.
    """
    url = urlsplit(gateway_url)
    job: dict[str, Any] = {
        "job_name": JOB,
        "scheme": url.scheme,
        "metrics_path": "/metrics",
        "honor_labels": True,  # `cluster` and `job` of Pulsar's names are those of the part
    }
    if targets_file:
        job["file_sd_configs"] = [{"files": [targets_file]}]
    else:
        job["static_configs"] = [{"targets": [url.netloc], "labels": {"component": "gateway"}}]
    if token_file:
        job["authorization"] = {"credentials_file": token_file}
    if ca_file:
        job["tls_config"] = {"ca_file": ca_file}
    jobs = [job]
    if with_pulsar_names:
        labels = [("component", "job"), ("name", "kubernetes_pod_name")]
        relabelled = [{"source_labels": [ours], "target_label": theirs} for ours, theirs in labels]
        jobs.append({**job, "job_name": "pulsar", "params": {"names": ["pulsar"]}, "relabel_configs": relabelled})
    if ray_list:
        jobs.append({"job_name": "ray", "file_sd_configs": [{"files": [ray_list]}]})
    interval = f"{SCRAPE_SECONDS}s"
    return _yaml(
        {
            "global": {"scrape_interval": interval, "scrape_timeout": "10s", "evaluation_interval": interval},
            "rule_files": [RULES_FILE],
            "scrape_configs": jobs,
        }
    )


def rules(runbooks: str = RUNBOOKS) -> str:
    """Return the rules of recording and alerting.

    Args:
        runbooks: the address of the page that has a section for each alert.
    """
    alerting = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasting,
            "labels": {"severity": alert.severity.value},
            "annotations": {
                "summary": alert.summary,
                "description": alert.meaning,
                "runbook_url": f"{runbooks}#{alert.name.lower()}",
            },
        }
        for alert in ALERTS
    ]
    recording = [{"record": name, "expr": expression} for name, expression in RECORDED.items()]
    groups = [{"name": "heliograph-sums", "rules": recording}, {"name": "heliograph", "rules": alerting}]
    return _yaml({"groups": groups})


def runbooks_page(command: str) -> str:
    """Return the page with a section for each alert.

    Args:
        command: which writes the page.
    """
    text = [
        "# Runbooks",
        "",
        f"{command} generates this page from `heliograph/monitoring/alerts.py`. There is a section for each alert:",
        "when it fires, its meaning for clients, and the remedy. [watching.md](watching.md) says how to install them.",
    ]
    for alert in ALERTS:
        text += ["", f"## {alert.name}", "", f"*{alert.severity.value}, after {alert.lasting}:* `{alert.expression}`"]
        text += ["", alert.meaning, ""]
        text += [f"{number}. {step}" for number, step in enumerate(alert.steps, 1)]
    return "\n".join([*text, ""])


def _yaml(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
