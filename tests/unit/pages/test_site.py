"""The site builds without a warning, loads nothing from the network, and a reader finds the obvious words in it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import snowballstemmer  # type: ignore[import-untyped]

from tests.rules.source import ROOT
from tests.unit.pages.words import WORDS
from tools.site import pages
from tools.site.pages import navigation, with_links

pytestmark = pytest.mark.slow

# Whatever a browser fetches by itself; links that a reader follows may lead anywhere.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?(?:src|data)=[\"']([^\"']+)|<link\b[^>]*?href=[\"']([^\"']+)"
)
IN_STYLES = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")
IN_SCRIPTS = re.compile(
    r"(?:fetch|import|importScripts|XMLHttpRequest|WebSocket|EventSource)\(\s*[\"'`](https?:[^\"'`]+)"
)
OUTSIDE = re.compile(r"(?:https?|wss?):|//")


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    loaded: Counter[str] = Counter()
    for file in sorted(site.rglob("*")):
        patterns = {".html": (LOADED, IN_STYLES), ".css": (IN_STYLES,), ".js": (IN_SCRIPTS,)}.get(file.suffix, ())
        for pattern in patterns:
            for found in pattern.finditer(file.read_text()):
                address = next(filter(None, found.groups()))
                assert not OUTSIDE.match(address), f"{file.relative_to(site)} loads {address}"
                loaded[file.suffix] += 1
    assert loaded[".html"] > 100, "the pattern finds scripts and styles"


def test_every_document_is_a_page(site: Path) -> None:
    sources = [*pages.TOP, *(str(each.relative_to(ROOT)) for each in (ROOT / "docs").rglob("*.md"))]
    missing = [name for name in sources if not (site / name).with_suffix(".html").exists()]
    assert not missing
    assert "docs/index.html" in (site / "index.html").read_text()


def index_of(site: Path) -> dict[str, Any]:
    """Return the search's index, which its page loads as a script."""
    text = (site / "searchindex.js").read_text()
    found: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    return found


def pages_with(word: str, index: dict[str, Any]) -> set[str]:
    """Return the pages that have every part of a word in their text or title, as the search stems them."""
    stem = snowballstemmer.stemmer("english").stemWord
    found = [set[int]() for _ in re.findall(r"\w+", word)]
    for numbers, part in zip(found, re.findall(r"\w+", word.lower()), strict=True):
        for terms in (index["terms"], index["titleterms"]):
            for form in {part, stem(part)}:
                listed = terms.get(form, [])
                numbers.update([listed] if isinstance(listed, int) else listed)
    return {index["docnames"][number] for number in set.intersection(*found)}


def test_each_obvious_word_finds_its_page(site: Path) -> None:
    index = index_of(site)
    assert len(WORDS) >= 40
    missed = {word: page for word, page in WORDS.items() if page not in pages_with(word, index)}
    assert not missed
    assert not pages_with("zebrafish", index)


def test_documents_named_in_the_text_become_links_outside_of_code(tmp_path: Path) -> None:
    for name in ("docs/tasks.md", "README.md", "docs/operations/tasks.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    page = tmp_path / "docs" / "operations" / "upgrade.md"
    text = (
        "See `docs/tasks.md`, `tasks.md`, [`tasks.md`](tasks.md), `no.md`.\n"
        "```\n`docs/tasks.md`\n```\n    `README.md`\n"
    )
    assert with_links(text, page, tmp_path) == (
        "See [`docs/tasks.md`](../tasks.md), [`tasks.md`](tasks.md), [`tasks.md`](tasks.md), `no.md`.\n"
        "```\n`docs/tasks.md`\n```\n    `README.md`\n"
    )
    assert "```text\nflowchart" in with_links("```mermaid\nflowchart\n```\n", page, tmp_path)


def test_the_navigation_has_each_page_once_under_its_heading() -> None:
    shown = navigation(
        "# All\n\n## Users\n\n- [a](a.md), [b](b/c.md)\n\n## Others\n\n- [a](a.md), [web](https://a.md)\n"
    )
    assert shown == "\n```{toctree}\n:hidden:\n:caption: Users\n\na.md\nb/c.md\n```\n"
