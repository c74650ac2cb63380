"""Every cell of the table comes to what docs/python.md says, in a process of its own that ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import heliograph
from tests.cluster.calls.table import CALLS, EXPECTED, KINDS, PAGE, SITUATIONS, documented, page

SECONDS_MAX = 900
CELLS_AT_ONCE = 12  # they wait more than they work


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, str]]:
    """Return what every cell came to, by its name."""
    with heliograph.local() as cluster:
        command = [sys.executable, "-m", "tests.cluster.calls", "--url", cluster.service_url]
        ran = subprocess.run(
            [*command, "--at-once", f"{CELLS_AT_ONCE}"],
            cwd=PAGE.parents[1],
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        )
        found = [json.loads(line) for line in ran.stdout.splitlines()]
        yield {each["cell"]: each["outcome"] for each in found}


@pytest.mark.timeout(SECONDS_MAX + 60)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_call_ends_as_the_table_says(outcomes: dict[str, str], situation: str) -> None:
    expected = {f"{call}/{situation}/{kind}": EXPECTED[situation][kind][call] for kind in KINDS for call in CALLS}
    found = {name: outcomes[name] for name in expected}
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
def test_the_docstrings_name_every_error_of_the_table(call: str, kind: str) -> None:
    errors = {EXPECTED[situation][kind][call] for situation in SITUATIONS}
    unsaid = [error for error in errors if error.endswith("Error") and not re.search(error, documented(call, kind))]
    assert not unsaid


def test_the_table_is_in_the_docs() -> None:
    assert page() == PAGE.read_text(), "run `make docs`"
