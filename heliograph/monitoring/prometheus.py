"""The configuration and the rules of Prometheus (pure). JSON is YAML, and JSON is what is written."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from heliograph.monitoring.alerts import ALERTS, JOB

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
    "cluster:heliograph_auditor_repaired_bytes:rate5m": "sum(rate(heliograph_auditor_repaired_bytes_total[5m]))",
}


def configuration(gateway_url: str, token_file: str = "", ca_file: str = "", ray_list: str = "") -> str:
    """Return a whole ``prometheus.yml`` that scrapes a cluster at its gateway, and takes the rules beside it.

    Args:
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
        "static_configs": [{"targets": [url.netloc]}],
    }
    if token_file:
        job["authorization"] = {"credentials_file": token_file}
    if ca_file:
        job["tls_config"] = {"ca_file": ca_file}
    jobs = [job]
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
        "when it fires, what that means for clients, and what to do. [watching.md](watching.md) says how to have them.",
    ]
    for alert in ALERTS:
        text += ["", f"## {alert.name}", "", f"*{alert.severity.value}, after {alert.lasting}:* `{alert.expression}`"]
        text += ["", alert.meaning, ""]
        text += [f"{number}. {step}" for number, step in enumerate(alert.steps, 1)]
    return "\n".join([*text, ""])


def _yaml(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
