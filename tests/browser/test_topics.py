"""Topics and messages: found among all, read in pages, searched, stopped, sent, and sent again."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from playwright.sync_api import Route, expect

import heliograph
from heliograph.standalone.local import LocalCluster
from tests.browser.conftest import HOSTILE, apart, keep_picture
from tests.browser.console import Console

ORDERS = "persistent://public/default/orders"


def test_a_topic_is_found_and_read(console: Console) -> None:
    page = console.go("topics")
    page.get_by_label("Name has").fill("ORD")
    console.press("Search", page)
    expect(page.locator("#topics tbody tr")).to_have_count(1)
    page.get_by_role("link", name="orders", exact=True).click()
    topic = console.page.locator("main")
    section = topic.get_by_role("region", name=f"Subscription {HOSTILE}", exact=True)
    expect(section.locator(".why")).to_contain_text("no consumer is connected")
    expect(section).to_contain_text("20 messages")
    expect(topic.locator("#ledgers")).to_contain_text("bookie-1")
    expect(topic.locator("#ledgers")).not_to_contain_text("missing")
    expect(topic.locator("#ledgers")).to_contain_text("hot")
    expect(topic.locator("#policies")).to_contain_text(re.compile("write_quorum.*cluster"))
    expect(topic.locator("#plots path").first).to_be_attached()  # within a step of the broker
    plot = topic.locator("#plots figure").first
    expect(plot.locator("figcaption")).to_contain_text(re.compile(r"Messages each second.*in: [\d.]+ now"))
    plot.locator("svg").hover()
    expect(plot.locator("figcaption")).to_contain_text(re.compile(r"Messages each second at \d\d:\d\d:\d\d"))
    plot.scroll_into_view_if_needed()
    keep_picture(console.page, "topic-plots", is_for_documents=False)


def test_a_curve_that_ended_has_no_value_now(console: Console) -> None:
    def end_curves(route: Route) -> None:
        answer = route.fetch()
        topic = answer.json()
        topic["plots"] = [
            {"title": "Backlog, messages", "form": "n", "lines": [["gone", [7, 8, None]], ["new", [None, 5, 6]]]}
        ]
        route.fulfill(response=answer, json=topic)

    console.page.route("**/admin/heliograph/topic?*", end_curves)
    curves = console.go(f"topic/{quote(ORDERS, safe='')}").locator("#plots figcaption")
    expect(curves).to_contain_text("gone: unknown now, 7 to 8;")
    expect(curves).to_contain_text("new: 6 now, 5 to 6;")


def test_messages_are_searched_published_and_sent_again(console: Console, cluster: LocalCluster) -> None:
    page = console.go(f"messages/{quote(ORDERS, safe='')}?place=earliest")
    console.press("Search", page)
    expect(page.locator("#progress")).to_contain_text("ended: end")
    expect(page.locator("#messages details")).to_have_count(20)
    page.locator("[name=limit]").fill("3")
    page.locator("[name=limit]").press("Tab")
    console.press("Search", page)
    expect(page.locator("#progress")).to_contain_text("ended: found 3 found")
    console.press("Go on", page)
    expect(page.locator("#progress")).to_contain_text("ended: found")
    message = page.locator("#messages details").first
    message.locator("summary").click()
    expect(message.locator("pre").first).to_have_text(HOSTILE)
    console.press("Raw, base64", message)
    expect(message.locator(".raw")).to_contain_text("PGltZ")
    expect(message.locator(".copy").nth(1)).to_contain_text(re.compile(rf"helio trace \d+:\d+\S* --topic '{ORDERS}'"))
    console.press("Publish to " + ORDERS, page)
    console.confirm("Publish", payload='{"city": "Brno"}', key="k", properties='{"a": "b"}')
    console.said("stored as")
    page.locator("[name=limit]").fill("")
    page.locator("[name=limit]").press("Tab")
    page.locator("[name=path]").fill("city")
    page.locator("[name=path]").press("Tab")
    console.press("Search", page)
    expect(page.locator("#messages details")).to_have_count(1)
    page.locator("#messages summary").click()
    page.get_by_role("button", name="Send again").click()
    apart(lambda: create(cluster, "copies-of-orders"))
    console.confirm("Send again", to="copies-of-orders")
    console.said("sent to copies-of-orders")


def create(cluster: LocalCluster, topic: str, partitions: int = 0) -> None:
    with cluster.connect() as client:
        client.admin.create_topic(topic, partitions)


def test_a_message_of_a_partition_is_shown_raw_and_no_time_is_no_search(
    console: Console, cluster: LocalCluster
) -> None:
    name = "persistent://public/default/parted"

    def publish() -> None:
        with cluster.connect() as client:
            client.admin.create_topic("parted", 3)
            with client.producer("parted") as producer:
                producer.send_many(["raw"] * 6)

    apart(publish)
    page = console.go(f"messages/{quote(name, safe='')}?place=earliest")
    console.press("Search", page)
    expect(page.locator("#progress")).to_contain_text("ended: end")
    message = page.locator("#messages details").last
    message.locator("summary").click()
    console.press("Raw, base64", message)
    expect(message.locator(".raw")).to_have_text("cmF3")
    page = console.go(f"messages/{quote(name, safe='')}?place=time&at=yesterday")
    console.press("Search", page)
    expect(page.locator("#progress")).to_contain_text("That is no time such as")
    expect(page.locator("#messages details")).to_have_count(0)
    page = console.go(f"topic/{quote(ORDERS, safe='')}")
    section = page.get_by_role("region", name=f"Subscription {HOSTILE}", exact=True)
    section.get_by_role("button", name="Reset").click()
    dialog = console.page.get_by_role("dialog")
    dialog.locator("[name=place]").select_option("a time")
    dialog.locator("[name=at]").fill("yesterday")
    dialog.locator("[name=confirm]").fill(HOSTILE)
    dialog.get_by_role("button", name="Reset").click()
    expect(dialog.get_by_role("alert")).to_contain_text("That is no time such as")


def test_a_live_tail_runs_until_it_is_stopped(console: Console, cluster: LocalCluster) -> None:
    apart(lambda: create(cluster, "tailed"))
    name = "persistent://public/default/tailed"
    page = console.go(f"messages/{quote(name, safe='')}")
    console.press("Follow", page)
    expect(page.locator("#progress")).to_contain_text("searching")
    expect(page.get_by_role("button", name="Stop")).to_be_enabled()

    def publish() -> None:
        with cluster.connect() as client, client.producer("tailed") as producer:
            producer.send_many([str(number) for number in range(300)])

    apart(publish)
    expect(page.locator("#messages details").first).to_be_visible()
    expect(page.locator("#progress")).to_contain_text("left out")
    console.press("Stop", page)
    expect(page.locator("#progress")).to_contain_text("stopped")


def test_messages_are_copied_and_followed_and_a_search_is_stopped(console: Console, cluster: LocalCluster) -> None:
    console.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = console.go(f"messages/{quote(ORDERS, safe='')}?place=earliest&limit=1")
    console.press("Search", page)
    message = page.locator("#messages details")
    message.locator("summary").click()
    message.get_by_role("button", name=re.compile("^copy as JSON")).click()
    console.said("copied")
    copied = json.loads(console.page.evaluate("navigator.clipboard.readText()"))
    assert (copied["payload"], copied["key"], copied["topic"]) == (HOSTILE, HOSTILE, ORDERS)
    command = f"helio trace {copied['messageId']} --topic '{ORDERS}'"
    message.get_by_role("button", name=re.compile("^copy as a command")).click()
    console.said(f"copied: {command}")
    assert console.page.evaluate("navigator.clipboard.readText()") == command
    console.press("Where", message)
    expect(message.get_by_role("region", name=re.compile("^Copies of")).locator("tbody")).to_contain_text(
        re.compile("bookie-1.*present")
    )
    followed = message.get_by_role("region", name=re.compile("^Subscriptions with"))
    expect(followed.locator("tr", has_text=HOSTILE)).to_contain_text("waits")
    console.page.route("**/browse?*", lambda _: None)  # it is not answered
    console.press("Search", page)
    expect(page.locator("#progress")).to_contain_text("searching")
    console.press("Stop", page)
    expect(page.locator("#progress")).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Search", exact=True)).to_be_enabled()


def test_dead_letters_say_why_and_go_back(console: Console, cluster: LocalCluster) -> None:
    dead, origin = "persistent://public/default/shop-billing-DLQ", "persistent://public/default/shop"

    def bury() -> None:
        create(cluster, "shop")
        with cluster.connect() as client, client.producer(dead) as producer:
            for why in ({"EXCEPTION": "it broke"}, {"RECONSUMETIMES": "3"}, {"RECONSUMETIMES": "4"}):
                producer.send("letter", properties={"REAL_TOPIC": origin, **why})

    apart(bury)
    page = console.go(f"messages/{quote(dead, safe='')}?place=earliest")
    console.press("Search", page)
    letters = page.locator("#messages details")
    expect(letters).to_have_count(3)
    for number, why in enumerate(("it broke", "came back 3")):
        letters.nth(number).locator("summary").click()
        expect(letters.nth(number)).to_contain_text(f"Reason: {why}, from {origin}")
    letters.first.get_by_role("button", name=re.compile("^Retry")).click()
    console.confirm("Retry")
    console.said("sent back")
    console.press(f"Retry all {dead}", page)
    console.confirm("Retry all")
    console.said("2 sent back")
    page = console.go(f"messages/{quote(origin, safe='')}?place=earliest")
    console.press("Search", page)
    expect(page.locator("#messages details")).to_have_count(3)


def test_partitions_schemas_and_producers_of_a_topic_and_the_order_of_rows(
    console: Console, cluster: LocalCluster
) -> None:
    apart(lambda: create(cluster, "split", 2))
    schema = heliograph.AvroSchema(
        json.dumps({"type": "record", "name": "Order", "fields": [{"name": "sku", "type": "string"}]})
    )
    client = apart(cluster.connect)
    try:
        producer = apart(lambda: client.producer("split", schema=schema, name="till-1"))
        for _ in range(2):  # a partition gets its producer with its first message
            apart(lambda: producer.send({"sku": "a"}))
        page = console.go(f"topic/{quote('persistent://public/default/split', safe='')}")
        expect(page.locator("#producers tbody")).to_contain_text("till-1")
        expect(page.locator("#schemas tbody")).to_contain_text(re.compile("AVRO.*sku"))
        rows = page.locator("#partitions tbody tr")
        expect(rows).to_have_count(2)
        heading = page.get_by_role("button", name=re.compile("^Policy")).first
        for order, first in (("ascending", "ack_quorum"), ("descending", "write_quorum")):
            heading.click()
            expect(page.locator("#policies th").first).to_have_attribute("aria-sort", order)
            expect(page.locator("#policies tbody th").first).to_have_text(first)
        rows.first.get_by_role("link").click()
        expect(console.page.locator("main h1")).to_contain_text("split-partition-")
        apart(producer.close)
    finally:
        apart(client.close)
