"""The blocks of code of the README."""

from __future__ import annotations

import re

from tests.cluster.install.environment import ROOT

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(heading: str) -> list[tuple[str, str]]:
    """Return language and text of each block of code below a heading."""
    _, found, rest = (ROOT / "README.md").read_text().partition(f"\n## {heading}\n")
    assert found, f"the README has no {heading!r}"
    return [(match[1], match[2]) for match in _BLOCK.finditer(rest.partition("\n## ")[0])]


def commands(text: str) -> list[str]:
    """Return the lines of a block without what is said behind them."""
    return [line.partition("  #")[0].rstrip() for line in text.splitlines()]
