"""Actions with rights and confirmation: what a superuser does, what a viewer may not, and what strangers try."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from heliograph.standalone.local import LocalCluster
from tests.browser.conftest import Opened, apart, token_of
from tests.browser.console import Console


@pytest.fixture
def entrance(opened: Opened, secured: LocalCluster) -> Console:
    """The console of a cluster that asks for a token."""
    console = opened(secured.http_url)
    console.expected = {401, 403}
    console.page.goto(secured.http_url)
    return console


def test_a_token_opens_the_console_is_in_no_address_and_ends_with_the_tab(
    entrance: Console, opened: Opened, secured: LocalCluster
) -> None:
    page, token = entrance.page, token_of(secured, "admin")
    entrance.log_in("forged")
    expect(page.get_by_role("alert")).to_contain_text("not accepted")
    entrance.log_in(token)
    expect(page.locator(".who")).to_contain_text("admin")
    expect(page.locator("#verdict")).to_contain_text("well")
    for address in ("map", "access", "audit"):
        entrance.go(address)
    assert not [address for address in entrance.addresses if token in address or "token=" in address]
    assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    other = opened(secured.http_url)
    other.expected = {401}
    other.page.goto(secured.http_url)
    expect(other.page.get_by_label("Token")).to_be_visible()
    entrance.press("Log out")
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_grants_and_revoked_tokens_are_changed_and_noted_in_the_audit_view(
    entrance: Console, secured: LocalCluster
) -> None:
    entrance.log_in(token_of(secured, "admin"))
    expect(entrance.page.locator(".who")).to_contain_text("admin")
    entrance.go("access")
    entrance.press("Grant on the namespace")
    entrance.confirm("Grant on the namespace", role="alice", actions="consume produce")
    entrance.said("It is granted.")
    row = entrance.page.locator("#grants tbody tr", has_text="alice")
    expect(row).to_contain_text("produce, consume")
    entrance.press("Revoke alice on public/default", within=row)
    entrance.confirm("Revoke")
    entrance.said("It is revoked.")
    expect(row).to_have_count(0)
    entrance.press("Revoke a token")
    entrance.confirm("Revoke a token", id="stolen-1")
    entrance.said("The token is revoked.")
    expect(entrance.page.locator("#revoked")).to_contain_text("stolen-1")
    entrance.go("audit")
    lines = entrance.page.locator("#audit tbody")
    for operation in ("permissions.grant", "permissions.revoke", "permissions.revoke_token"):
        expect(lines).to_contain_text(operation)
    entrance.page.get_by_label("Filter").fill("alice")
    expect(lines).not_to_contain_text("revoke_token")
    expect(lines.locator("tr").first).to_contain_text("done")


def test_a_viewer_sees_and_may_not_act(entrance: Console, secured: LocalCluster) -> None:
    def grant() -> None:
        with secured.connect() as client:
            client.admin.permissions.grant("public/default", "viewer", ["consume"])

    apart(grant)
    entrance.log_in(token_of(secured, "viewer"))
    page = entrance.page
    expect(page.locator(".who")).to_contain_text("viewer (may not act on the cluster)")
    entrance.go("map")
    expect(page.locator("main")).to_contain_text("not for your role")
    entrance.go("access")
    expect(page.get_by_role("button", name="Revoke a token", exact=True)).to_be_disabled()
    entrance.press("Grant on the namespace")
    entrance.confirm("Grant on the namespace", role="viewer", actions="produce")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("needs the right")


def test_what_destroys_asks_for_the_name_and_what_the_cluster_lacks_is_said(console: Console) -> None:
    console.go("map")
    expect(console.page.get_by_role("button", name="Pause repair", exact=True)).to_be_disabled()
    card = console.page.locator("[data-part=broker-1]")
    card.get_by_text("Actions for broker-1").click()
    console.press("Drain broker-1", within=card)
    console.confirm("Drain")
    console.said("bundles away")
    expect(card).to_contain_text("drained")
    console.press("Take topics again broker-1", within=card)
    console.confirm("Take topics again")
    console.said("It takes topics again.")
    expect(card).not_to_contain_text("drained")


def test_a_foreign_page_can_neither_act_nor_frame_nor_read(browser: Browser, cluster: LocalCluster) -> None:
    """The gateway without authentication trusts this machine, not the pages that its browser shows."""
    context = browser.new_context()
    page = context.new_page()
    page.route("http://evil.example/", lambda route: route.fulfill(body="<h1>evil</h1>", content_type="text/html"))
    page.goto("http://evil.example/")
    url = cluster.http_url
    sent = """async ([url, type]) => {
        try {
            const answer = await fetch(url + "/admin/heliograph/operations/delete_topic",
                { method: "POST", mode: type ? "cors" : "no-cors", headers: type ? { "Content-Type": type } : {},
                  body: JSON.stringify({ arguments: { topic: "orders", force: true } }) });
            return String(answer.status);
        } catch (error) { return error.name; }
    }"""
    assert page.evaluate(sent, [url, ""]) in ("0", "TypeError")  # opaque
    assert page.evaluate(sent, [url, "application/json"]) == "TypeError"
    framed = """(url) => new Promise((done) => {
        const frame = document.createElement("iframe");
        frame.src = url + "/";
        frame.onload = () => { try { done(frame.contentDocument.title); } catch { done("closed"); } };
        document.body.append(frame);
    })"""
    assert page.evaluate(framed, url) in ("closed", "")
    shown = [frame.url for frame in page.frames[1:]]
    assert all(re.match(r"chrome-error:|about:", each) for each in shown), shown
    context.close()

    def topics() -> list[str]:
        with cluster.connect() as client:
            return [item["name"] for item in client.admin.list_topics()]

    assert "persistent://public/default/orders" in apart(topics)
