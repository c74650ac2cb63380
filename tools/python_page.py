"""The table of public names in docs/python.md: ``make docs`` writes it, tests/unit/test_python_page.py compares it."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import heliograph

PAGE = Path(__file__).resolve().parents[1] / "docs" / "python.md"
BEGIN, END = "<!-- names: made by `make docs` -->\n", "<!-- end of names -->\n"
FOR_HANDLES = "For handles only"  # the docstring of a member that has a public name and is none for users


def members(kind: type) -> list[str]:
    """Return the public members of a class that a user may use, sorted."""
    found = {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    found = {name for name in found if not name.startswith("_")}
    for base in kind.__mro__:
        if base.__module__.startswith("heliograph"):
            found |= {name for name in vars(base) if not name.startswith("_")}
    return sorted(name for name in found if FOR_HANDLES not in (inspect.getdoc(getattr(kind, name, None)) or ""))


def summary(named: object) -> str:
    """Return the first sentence of a docstring, in one line."""
    text = " ".join((inspect.getdoc(named) or "").split())
    return text.partition(". ")[0].rstrip(".").replace("|", "\\|") + "."


def table() -> str:
    """Return the table of all public names."""
    rows = ["| name | what it is | members |", "|---|---|---|"]
    for name in heliograph.__all__:
        named = getattr(heliograph, name)
        shown = ", ".join(f"`{one}`" for one in members(named)) if isinstance(named, type) else ""
        rows.append(f"| `{name}` | {summary(named)} | {shown} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Return the page with the table of now."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
