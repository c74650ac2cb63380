"""The code of the pages runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.source import ROOT
from tests.unit.pages.snippets import GATEWAY, Addresses, pages_with_code, run_page, snippets
from tools.site.pages import INDEXES, LINK

SECONDS = 400
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", pages_with_code())
def test_the_code_of_a_page_runs(name: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
    environment |= {"HELIOGRAPH_STATE_ROOT": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.unit.pages.snippets", str(ROOT / name), str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_is_not_run_is_python_at_least(page: Path) -> None:
    for snippet in snippets(page):
        if snippet.kind == "python":
            compile("\n" * (snippet.line - 1) + snippet.code, str(page), "exec")


def test_each_page_is_in_the_navigation() -> None:
    """The site, which the slow tests build, refuses a page that no index links to."""
    linked = {(ROOT / index).parent / link for index in INDEXES for link in LINK.findall((ROOT / index).read_text())}
    found = {str(page.relative_to(ROOT)) for page in {*PAGES} - {each.resolve() for each in linked}}
    listed = {name for name in found if name.startswith(("docs/api/", "docs/decisions/"))}  # by the site itself
    assert found - listed == {"docs/index.md"}


def test_blocks_are_found_with_their_kind_line_and_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\na = 1\n```\n\n<!-- not run: no Ray -->\n```python\nb = 2\n```\n\n```\nplain\n```\n"
    )
    first, second, third = snippets(page)
    assert (first.kind, first.code, first.line, first.reason) == ("python", "a = 1\n", 4, None)
    assert (second.line, second.reason) == (9, "no Ray")
    assert third.kind == ""


@pytest.mark.slow
def test_a_failing_block_is_named_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nbroken = 1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_page(page, tmp_path)
    assert caught.traceback[-1].lineno == 3  # counted from 0
    shown = Addresses("pulsar://h:1", "http://h:2").put_into(f"curl {GATEWAY}/health 127.0.0.1:8080")
    assert shown == "curl http://h:2/health h:2"
