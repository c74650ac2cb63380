"""A browser, clusters to look at, and pages that fail a test for what a user would not see: errors and violations."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

import heliograph
from heliograph.auth.issuing import new_token
from heliograph.standalone.local import LocalCluster
from tests.browser.console import Console

T = TypeVar("T")
HOSTILE = "<img src=x onerror=alert(1)>\"'&<script>"  # a name that a topic, a subscription or a role may have
ROOT = Path(__file__).resolve().parents[2]
SHOTS, PICTURES = ROOT / "browser-shots", ROOT / "docs" / "pictures"
SHOWN_SECONDS = 30.0  # for anything to be seen on a busy machine; no test is about less
WIDE: ViewportSize = {"width": 1200, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}


def chromium() -> str:
    """Return the browser's program; skip the test without it, or fail where apt has it."""
    found = shutil.which("chromium")
    if found is None:
        asked = ["apt-cache", "show", "chromium"]
        has_apt = shutil.which("apt-cache") is not None and subprocess.run(asked, capture_output=True).returncode == 0
        assert not (has_apt and os.geteuid() == 0), "chromium is not installed, although apt has it: make servers"
        pytest.skip("chromium is not installed: make servers, or apt-get install chromium")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    expect.set_options(timeout=SHOWN_SECONDS * 1000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=options)
        yield running
        running.close()


def apart(work: Callable[[], T]) -> T:
    """Return what work returns on another thread: an event loop of Playwright's runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """What ``helio dev`` starts, with subscriptions that are behind, and names that would be code elsewhere."""
    with heliograph.local(tmp_path_factory.mktemp("console") / "home") as running:
        apart(lambda: fill(running))
        yield running


def fill(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        for name in ("orders", HOSTILE):
            client.admin.create_topic(name)
            client.admin.create_subscription(name, HOSTILE, "earliest")
            with client.producer(name, batch_messages=1) as producer:
                for number in range(20):
                    producer.send(HOSTILE.encode(), key=HOSTILE, properties={HOSTILE: str(number)})


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that asks for tokens; ``token_of`` makes them."""
    with heliograph.local(tmp_path_factory.mktemp("secured") / "home", secure=True) as running:
        yield running


def token_of(cluster: LocalCluster, role: str) -> str:
    return new_token(role, (cluster.directory / "token-secret.key").read_bytes(), "HS256")


Opened = Callable[..., Console]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Return a function that opens the console of a gateway in a browser of its own; each fails for what went wrong."""
    contexts: list[BrowserContext] = []
    consoles: list[Console] = []

    def open_console(url: str, *, is_dark: bool = False, is_phone: bool = False, for_axe: bool = False) -> Console:
        context = browser.new_context(
            viewport=PHONE if is_phone else WIDE,
            color_scheme="dark" if is_dark else "light",
            has_touch=is_phone,
            ignore_https_errors=True,
            bypass_csp=for_axe,  # axe reads pages by means that the policy of this one forbids
            reduced_motion="reduce",
        )
        context.set_default_timeout(SHOWN_SECONDS * 1000)
        contexts.append(context)
        page: Page = context.new_page()
        consoles.append(Console(page, url))
        return consoles[-1]

    yield open_console
    wrong = [line for console in consoles for line in console.wrong]
    for context in contexts:
        context.close()
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def console(opened: Opened, cluster: LocalCluster) -> Console:
    return opened(cluster.http_url)


def keep_picture(page: Page, name: str, *, is_for_documents: bool = True) -> None:
    """Keep a screenshot in ``browser-shots``; with ``RECORD=1`` also among the pictures of the documents."""
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")
    if is_for_documents and os.environ.get("RECORD"):
        page.screenshot(path=PICTURES / f"{name}.png")
