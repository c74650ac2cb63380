"""``GET /metrics`` of a cluster in one process: what was published, delivered and stored, and nothing twice."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import heliograph
from heliograph.base.guard.watchdog import LOCKED, LONG_SECONDS
from heliograph.metrics.metric import MetricKind
from heliograph.metrics.table import METRICS

BOOKIES = ("bookie-1", "bookie-2", "bookie-3")
FLIGHTS = "persistent://public/default/flights"
Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(url: str) -> Scraped:
    """Return the samples of one scrape, each of which has a definition."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found: Scraped = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
        name = family.name + "_total" * (family.type == "counter")
        assert METRICS[name].kind is MetricKind(family.type)
        assert family.documentation == METRICS[name].meaning
    return found


def value(found: Scraped, name: str, **labels: str) -> float:
    return found[f"heliograph_{name}", frozenset(labels.items())]


def slowest_adds(found: Scraped) -> float:
    """Return how many answers to adds the broker has timed of the bookie of which it has timed the fewest."""
    counts = (value(found, "broker_add_latency_seconds_count", broker="broker-1", bookie=name) for name in BOOKIES)
    return min(counts)


def test_what_is_published_and_delivered_is_counted(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, bookies=3) as cluster, cluster.connect() as client:
        consumer = client.consumer("flights", "audit")
        producer = client.producer("flights")
        for number in range(40):
            producer.send(b"%d" % number)
        for _ in range(10):
            consumer.ack(consumer.receive(timeout=60))
        found = scrape(cluster.http_url)
        while slowest_adds(found) < 4:  # a receipt comes when two of three bookies have answered
            found = scrape(cluster.http_url)
        assert value(found, "broker_messages_in_total", broker="broker-1") == 40
        assert value(found, "broker_publish_latency_seconds_count", broker="broker-1") == 40
        assert value(found, "broker_publish_latency_seconds_sum", broker="broker-1") > 0
        assert value(found, "broker_delivery_latency_seconds_count", broker="broker-1") == 40
        labels = {"namespace": "public/default", "topic": FLIGHTS}
        assert value(found, "subscription_backlog_messages", subscription="audit", **labels) == 30
        assert value(found, "topic_producers", **labels) == 1
        assert value(found, "namespace_topics", namespace="public/default") == 1
        for bookie in BOOKIES:
            assert value(found, "part_up", part=bookie, kind="bookie") == 1
            assert value(found, "part_scraped", part=bookie) == 1
            syncs = value(found, "bookie_journal_syncs_total", bookie=bookie)
            assert value(found, "bookie_journal_sync_latency_seconds_count", bookie=bookie) == syncs > 0
        assert value(found, "report_is_silent") == 0
        producer.close()
        consumer.close()
        client.admin.delete_topic("flights", force=True)
        found = scrape(cluster.http_url)
        assert value(found, "broker_messages_in_total", broker="broker-1") == 40  # a counter does not fall
        assert not [key for key in found if ("topic", FLIGHTS) in key[1]]


def busy(seconds: float) -> None:
    """Use the processor for so long, as a step that does too much does."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_long_steps_of_each_cluster_of_the_process_are_counted_and_named(caplog: pytest.LogCaptureFixture) -> None:
    heliograph.local().stop()
    with heliograph.local(), heliograph.local() as cluster:
        assert cluster._thread is not None
        while not value(found := scrape(cluster.http_url), "part_loop_long_steps_total", part="gateway"):
            cluster._thread.call(lambda: busy(0.3))  # a machine that is busy enough keeps the watch from looking
        assert value(found, "part_loop_longest_step_seconds", part="gateway") >= LONG_SECONDS
    assert any("busy (test_metrics.py:" in line or LOCKED in line for line in caplog.messages)
