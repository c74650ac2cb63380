"""A bookie of a cluster dies: what an operator reads within seconds, presses, and sees stay.

The sentences are those that a stranger needs: what died, what is being repaired, when it will be done, which
subscription falls behind, and which command helps.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opened, apart, keep_picture
from tests.browser.console import Console
from tests.browser.lossy import Lossy, lossy_cluster
from tests.browser.reading import read_as_a_stranger

LOST = "bookie-4"
RED_SECONDS = 10.0
TOPICS = 24  # with ledgers to copy, so that repair can be seen
REPAIR_SECONDS = 120.0


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lossy]:
    with lossy_cluster(tmp_path_factory.mktemp("lossy") / "home") as running:
        apart(lambda: fill(running))
        yield running


def fill(lossy: Lossy) -> None:
    with lossy.cluster.connect() as client:
        for number in range(TOPICS):
            client.admin.create_topic(f"topic-{number}")
            with client.producer(f"topic-{number}", batch_messages=1) as producer:
                producer.send_many([b"x" * 10_000] * 10)
            if number % 2:
                client.admin.terminate_topic(f"topic-{number}")  # a ledger without a writer is copied at once
        client.admin.create_subscription("topic-0", "billing", "earliest")


def topic_on(lossy: Lossy, bookie: str) -> str:
    """Return a topic that has copies on a bookie."""
    with lossy.cluster.connect() as client:
        for topic in (f"topic-{number}" for number in range(TOPICS)):
            ledgers = client.admin.topic_internal_stats(topic)["ledgers"]
            if any(bookie in part["bookies"] for one in ledgers for part in one["ensembles"]):
                return f"persistent://public/default/{topic}"
    raise AssertionError(f"no topic has copies on {bookie}")


def seen(console: Console, pattern: str, seconds: float) -> float:
    """Wait until the page says it, and return how many seconds that took."""
    begun = time.monotonic()
    expect(console.page.locator("main")).to_contain_text(re.compile(pattern), timeout=seconds * 1000)
    return time.monotonic() - begun


def test_a_stranger_reads_what_died_what_goes_on_until_when_and_what_helps(opened: Opened, lossy: Lossy) -> None:
    overview, chart = opened(lossy.cluster.http_url), opened(lossy.cluster.http_url)
    overview.go()
    chart.go("map")
    card, repair = chart.page.locator(f"[data-part={LOST}]"), chart.page.locator("#repair")
    expect(card).to_contain_text("well")
    expect(card.locator("progress")).to_be_visible()

    apart(lambda: lossy.kill(LOST))
    print(f"red after {seen(overview, f'{LOST} is down', RED_SECONDS):.1f} s")  # what died
    expect(card).to_have_class(re.compile("bad"), timeout=RED_SECONDS * 1000)
    verdict = overview.page.locator("#verdict")
    expect(verdict).to_contain_text(
        re.compile(r"degraded since \d\d:\d\d:\d\d, publishing goes on for (\d+) of \1 topics")
    )
    died = overview.page.locator("#findings li", has_text=f"{LOST} is down")
    expect(died).to_contain_text("publishing and reading go on with the other copies")
    expect(died).to_contain_text("copies that it had are made again on other bookies")  # until when
    expect(died.locator("code")).to_have_text(f"helio logs {LOST}")  # which command helps
    expect(card).to_contain_text(re.compile("used.*when last seen"))

    topic = opened(lossy.cluster.http_url)
    topic.go(f"topic/{quote(apart(lambda: topic_on(lossy, LOST)), safe='')}")
    expect(topic.page.locator("#ledgers .state.bad").first).to_contain_text(f"{LOST} missing")

    behind = overview.page.locator("#findings li", has_text="billing of topic-0 is 10 messages behind")
    expect(behind).to_contain_text("no consumer is connected")  # which subscription falls behind
    expect(behind.locator("code")).to_have_text("helio topics stats topic-0")

    lacking = overview.page.locator("#findings li", has_text="fewer copies than wanted")  # what is being repaired
    expect(lacking).to_contain_text("repair goes on with 0 of them now", timeout=REPAIR_SECONDS * 1000)
    expect(lacking.locator("code")).to_have_text("helio ledgers repair-status")
    expect(verdict).to_contain_text("nothing is lost")
    chart.press("Pause repair")
    chart.confirm("Pause repair")
    chart.said("Repair is paused.")
    expect(lacking).to_contain_text("repair is paused", timeout=REPAIR_SECONDS * 1000)
    expect(lacking.locator("code")).to_have_text("helio ledgers resume")
    keep_picture(overview.page, "lost-bookie")
    keep_picture(chart.page, "lost-bookie-map", is_for_documents=False)
    overview.press("Resume repair", within=lacking)
    overview.confirm("Resume repair")
    overview.said("Repair goes on.")
    apart(lossy.repair)
    done = r"bytes copied\s*[\d.]+ [kM]B\s*rate\s*[\d.]+ [kM]?B/s\s*time left\s*[\d.]+ min"
    expect(repair).to_contain_text(re.compile(done), timeout=REPAIR_SECONDS * 1000)
    expect(lacking).to_contain_text(re.compile(r"and is done in about \d+ min"), timeout=REPAIR_SECONDS * 1000)
    read_as_a_stranger(opened, lossy.cluster.http_url, LOST, "billing", "topic-0")
    lossy.pass_grace()
    expect(lacking).to_have_count(0, timeout=REPAIR_SECONDS * 1000)
    expect(repair).to_contain_text("nothing is missing", timeout=REPAIR_SECONDS * 1000)
    expect(died).to_contain_text("the copies that it had are made again: other bookies have all of them")

    expect(card).to_have_class(re.compile("bad"))  # the dead stay
    chart.page.reload()
    expect(card).to_contain_text("down")
    expect(overview.page.locator("#findings")).to_contain_text(f"{LOST} is down")
