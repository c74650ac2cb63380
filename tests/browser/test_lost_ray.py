"""A bookie of a cluster in Ray loses its disk: operator, auditor and gateway tell the same sentences as elsewhere."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

import heliograph
from heliograph.client import discovery
from tests.browser.conftest import Opened, apart
from tests.browser.reading import read_as_a_stranger
from tests.cluster.deployment.test_lost_bookie import lose_disk
from tests.cluster.support.live_cluster import LiveCluster, start

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(900)]

LOST = "bookie-4"
TOPICS = 12
SEEN_SECONDS = 240.0  # for a step of the cluster, on a busy machine


@pytest.fixture
def cluster_in_ray(tmp_path: Path) -> Iterator[LiveCluster]:
    """A cluster whose repair waits for writers that do not write, so that it can be read about."""

    def begin() -> LiveCluster:
        discovery.detach()
        return start(
            tmp_path, f"seen-{uuid.uuid4().hex[:8]}", operator=True, parts="apart", open_ledger_grace_ms=120_000
        )

    running = apart(begin)
    try:
        apart(running.attach)
        yield running
    finally:
        apart(running.stop)


def fill(running: LiveCluster) -> None:
    with heliograph.connect(namespace=running.namespace) as client:
        for number in range(TOPICS):
            client.admin.create_topic(f"topic-{number}")
            with client.producer(f"topic-{number}", batch_messages=1) as producer:
                producer.send_many([b"x" * 10_000] * 10)
            if number % 2:
                client.admin.terminate_topic(f"topic-{number}")  # a ledger without a writer is copied at once
        client.admin.create_subscription("topic-0", "billing", "earliest")


def test_a_stranger_reads_what_died_what_goes_on_until_when_and_what_helps(
    opened: Opened, cluster_in_ray: LiveCluster
) -> None:
    running, url = cluster_in_ray, cluster_in_ray.state.gateway_url
    apart(lambda: fill(running))
    overview, chart = opened(url), opened(url)
    overview.go()
    chart.go("map")
    nodes = chart.page.locator("#nodes tbody tr")
    expect(nodes).to_have_count(1)
    expect(nodes).to_contain_text(re.compile(rf"alive.*{LOST}"))
    apart(lambda: lose_disk(running, LOST))
    findings, wait = overview.page.locator("#findings"), SEEN_SECONDS * 1000
    expect(findings).to_contain_text(re.compile(rf"{LOST} is down: does not start: CookieMismatch"), timeout=wait)
    expect(findings).to_contain_text(re.compile(r"fewer copies than wanted.*is done in about"), timeout=wait)
    read_as_a_stranger(opened, url, LOST, "billing", "topic-0")

    card = chart.page.locator(f"[data-part={LOST}]")
    expect(card).to_have_class(re.compile("bad"))
    card.locator("summary").click()
    chart.press(f"Replace {LOST}")
    chart.confirm("Replace", confirm=LOST)
    chart.said("The operator was asked: replace")
    wishes = chart.page.locator("#wishes tbody tr", has_text=f"replace {LOST}")
    expect(wishes).to_contain_text(re.compile("asked|accepted|done"), timeout=wait)
    expect(wishes).to_contain_text("done", timeout=wait)
    expect(card).not_to_have_class(re.compile("bad"), timeout=wait)
    expect(findings).not_to_contain_text(f"{LOST} is down", timeout=wait)
