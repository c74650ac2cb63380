"""The documentation in a browser, from a folder: the search ranks the right page first, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import PHONE, SHOWN_SECONDS
from tests.unit.pages.conftest import site
from tests.unit.pages.words import WORDS

__all__ = ["site"]

FIRST = 5  # results that a reader looks at


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a phone's size that notes what it asks for."""
    context = browser.new_context(viewport=PHONE, offline=True)
    opened = context.new_page()
    opened.set_default_timeout(SHOWN_SECONDS * 1000)
    yield opened
    context.close()


def results(page: Page, site: Path, word: str) -> list[str]:
    """Return the pages that the search of the site shows first for a word."""
    page.goto(f"{(site / 'search.html').as_uri()}?q={word.replace(' ', '+')}")
    page.wait_for_function("document.querySelector('#search-results p')?.textContent.match(/found|did not match/)")
    links = page.locator("#search-results li > a").evaluate_all("all => all.map(each => each.pathname)")
    return [link.removeprefix(str(site) + "/").removesuffix(".html") for link in links]


def test_the_search_shows_the_right_page_among_the_first(page: Page, site: Path) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    missed = {}
    for word, wanted in WORDS.items():
        first = list(dict.fromkeys(results(page, site, word)))[:FIRST]
        if wanted not in first:
            missed[word] = (wanted, first)
    assert not missed
    assert results(page, site, "zebrafish") == []
    assert len(asked) > len(WORDS)
    assert not [url for url in asked if not url.startswith("file:")]


def test_a_page_fits_a_phone(page: Page, site: Path) -> None:
    for name in (
        "index",
        "docs/index",
        "docs/python",
        "docs/operations/settings",
        "docs/api/heliograph",
        "docs/api/helio",
    ):
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_url("**/docs/**")  # the page of the root leads there
        page.wait_for_load_state()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"] + 2, name
