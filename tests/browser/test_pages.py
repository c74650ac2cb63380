"""Every page: readable for everyone, in light and dark, on a phone and by the keyboard, and no text becomes code."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from heliograph.standalone.local import LocalCluster
from tests.browser.conftest import HOSTILE, PICTURES, ROOT, Opened, keep_picture
from tests.browser.console import Console
from tests.clients.support.npm import install_package

AXE_VERSION = "4.14.1"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
STATIC = ROOT / "gateway" / "console" / "static"
PICTURE_BYTES_MAX = 150_000
NAMES = {"name": "persistent://public/default/orders", "topic": "persistent://public/default/orders"}


def pages() -> list[str]:
    """Return an address of every page that the console has, parameters filled in."""
    files = re.findall(r'from "\./(pages/\w+\.js)"', (STATIC / "pages.js").read_text())
    found = [re.search(r'path: "([^"]*)"', (STATIC / file).read_text()) for file in files]
    assert all(found)
    paths = [match[1] for match in found if match]
    return [re.sub(r":(\w+)", lambda name: quote(NAMES[name[1]], safe=""), path) for path in paths]


@pytest.fixture(scope="session")
def axe() -> str:
    return (install_package("axe-core", AXE_VERSION) / "axe-core" / "axe.min.js").read_text()


def violations(page: Page, axe: str) -> list[str]:
    """Return what axe-core finds on a page, with the places."""
    page.evaluate(axe)
    options = json.dumps({"runOnly": {"type": "tag", "values": RULES}})
    found: list[dict[str, Any]] = page.evaluate(f"axe.run(document, {options}).then((found) => found.violations)")
    return [f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:5]]}" for each in found]


def settled(console: Console, address: str) -> None:
    console.go(address)
    expect(console.page.get_by_text("loading")).to_have_count(0)


@pytest.mark.parametrize("is_dark_phone", [False, True])
def test_every_page_is_accessible_and_has_its_picture(
    opened: Opened, cluster: LocalCluster, axe: str, is_dark_phone: bool
) -> None:
    console = opened(cluster.http_url, is_dark=is_dark_phone, is_phone=is_dark_phone, for_axe=True)
    scheme, wrong = "dark" if is_dark_phone else "light", []
    for address in pages():
        settled(console, address)
        name = re.sub(r"\W.*", "", address) or "overview"
        keep_picture(
            console.page, name if scheme == "light" else f"{name}-{scheme}", is_for_documents=scheme == "light"
        )
        wrong += [f"{address or 'overview'}, {scheme}: {line}" for line in violations(console.page, axe)]
        width = console.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if width > 0:
            wrong.append(f"{address}, {scheme}: {width} pixels are beyond the edge")
    assert not wrong, "\n".join(wrong)


def test_a_dialog_is_accessible_too(opened: Opened, cluster: LocalCluster, axe: str) -> None:
    console = opened(cluster.http_url, for_axe=True)
    settled(console, "access")
    console.press("Grant on a topic")
    expect(console.page.get_by_role("dialog")).to_be_visible()
    assert violations(console.page, axe) == []


def test_pictures_in_the_documents_are_small() -> None:
    found = list(PICTURES.glob("*.png"))
    assert found
    assert not [path.name for path in found if path.stat().st_size >= PICTURE_BYTES_MAX]


def test_the_policy_stands_and_names_of_topics_are_text(console: Console) -> None:
    for address in pages():
        settled(console, address)
    overview = console.go()
    expect(overview.locator("#findings")).to_contain_text(HOSTILE)
    assert console.page.evaluate("document.querySelectorAll('main script').length") == 0
    refused = console.page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'HTML'; } catch (error) { return error.name; } }"
    )
    assert refused == "TypeError", "a string does not become HTML, whatever a script does"
    assert console.page.evaluate("(() => { try { return window.top === window; } catch { return false; } })()")
    console.wrong = [line for line in console.wrong if "TrustedHTML" not in line]  # the one that was provoked


def test_the_keyboard_alone_opens_a_page_and_a_dialog_and_gets_back(console: Console) -> None:
    settled(console, "")
    page = console.page
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_be_focused()
    link = page.get_by_role("link", name="Access", exact=True)
    for _ in range(20):
        page.keyboard.press("Shift+Tab")
        if link.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Access")
    expect(page.locator("h1")).to_be_focused()
    button = page.get_by_role("button", name="Grant on the namespace", exact=True)
    for _ in range(20):
        page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.type("alice")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()


def test_a_gateway_that_does_not_answer_is_unknown_and_what_was_known_is_dated(console: Console) -> None:
    settled(console, "map")
    console.page.route("**/admin/heliograph/map", lambda route: route.abort())
    console.page.route("**/status", lambda route: route.abort())
    expect(console.page.locator(".brief")).to_contain_text("unknown: the gateway does not answer")
    expect(console.page.get_by_role("alert")).to_contain_text("What stands below was so at")
    expect(console.page.locator("[data-part=bookie-1]")).to_be_visible()
    console.wrong = [line for line in console.wrong if "ERR_FAILED" not in line]
