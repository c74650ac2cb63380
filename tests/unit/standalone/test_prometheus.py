"""A real Prometheus reads a cluster in one process, and every panel of the boards shows something."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import heliograph
from heliograph.cluster.ports import pick_free
from heliograph.monitoring.alerts import ALERTS
from heliograph.monitoring.boards import BOARDS
from heliograph.monitoring.prometheus import RULES_FILE, configuration, rules
from tests.prometheus_server import program

# A cluster in one process has no auditor, and nobody has a WebSocket session.
EMPTY = ("heliograph_auditor_", "heliograph_gateway_sessions")
SECONDS_MAX = 120


def get(url: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=60) as answer:
        return json.load(answer)["data"]


@contextlib.contextmanager
def prometheus(directory: Path, gateway: str) -> Iterator[str]:
    """Run a Prometheus that scrapes the gateway each second; yield the address of its API."""
    config = json.loads(configuration(gateway))
    config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), "1s")
    (directory / "prometheus.yml").write_text(json.dumps(config))
    (directory / RULES_FILE).write_text(rules())
    address = f"127.0.0.1:{pick_free()}"
    command = [program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    server = subprocess.Popen(
        [*command, f"--web.listen-address={address}"],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}/api/v1"
    finally:
        server.terminate()
        server.wait(60)


def scrapes(api: str) -> int:
    """Return how many scrapes Prometheus has made that went well."""
    with contextlib.suppress(OSError):
        found = get(f"{api}/query", query='sum_over_time(up{job="heliograph"}[1h])')["result"]
        return int(float(found[0]["value"][1])) if found else 0
    return 0


def test_every_panel_shows_something_and_no_alert_fires(tmp_path: Path) -> None:
    with heliograph.local(tmp_path / "cluster", bookies=3) as cluster, cluster.connect() as client:
        client.admin.settings.set("probe_seconds", "0.2")
        producer, consumer = client.producer("orders"), client.consumer("orders", "audit")
        with prometheus(tmp_path, cluster.http_url) as api:
            deadline = time.monotonic() + SECONDS_MAX
            while scrapes(api) < 5:
                assert time.monotonic() < deadline, "Prometheus scrapes nothing"
                for _ in range(30):
                    producer.send(b"x")
                    consumer.ack(consumer.receive(timeout=60))
                urllib.request.urlopen(f"{cluster.http_url}/health", timeout=60).read()
                time.sleep(0.2)
            silent = [
                f"{board.name}: {panel.title}"
                for board in BOARDS
                for panel in board.panels
                for query in panel.queries.values()
                if not get(f"{api}/query", query=query.replace("$namespace", ".*"))["result"]
                and not any(name in query for name in EMPTY)
            ]
            assert silent == []
            found = get(f"{api}/rules")["groups"]
            loaded = {rule["name"]: rule["health"] for group in found for rule in group["rules"]}
            assert {alert.name for alert in ALERTS} <= loaded.keys()
            assert {*loaded.values()} == {"ok"}
            firing = [alert["labels"] for alert in get(f"{api}/alerts")["alerts"] if alert["state"] == "firing"]
            assert firing == []
