"""docs/python.md has every public name, and each of these is documented."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import heliograph
from tools import python_page

TEXT = python_page.PAGE.read_text()
ELSEWHERE = re.compile(r"rguments?.*are those of|[Aa]s ``\w+``")  # another docstring has the arguments
CLASSES = [name for name in heliograph.__all__ if isinstance(getattr(heliograph, name), type)]


def public_functions() -> list[tuple[str, Any]]:
    """Return the public functions and methods by name."""
    found = [(name, getattr(heliograph, name)) for name in ("connect", "connect_async", "local", "start")]
    for name in CLASSES:
        kind = getattr(heliograph, name)
        for member in python_page.members(kind):
            value = inspect.getattr_static(kind, member, None)
            value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            value = value.fget if isinstance(value, property) else value
            if inspect.isfunction(value):
                found.append((f"{name}.{member}", value))
    return found


def test_the_page_has_every_public_name_and_member() -> None:
    assert python_page.page() == TEXT, "run `make docs`"
    for name in heliograph.__all__:
        assert f"| `{name}` |" in TEXT


@pytest.mark.parametrize("name", heliograph.__all__)
def test_a_public_name_is_documented_and_leads_to_nothing_private(name: str) -> None:
    named = getattr(heliograph, name)
    assert re.match(r".+\.", (inspect.getdoc(named) or "").partition("\n\n")[0], re.DOTALL), (
        "a sentence says what it is"
    )
    shown = python_page.members(named) if isinstance(named, type) else []
    assert not [member for member in shown if member.startswith("_")]


@pytest.mark.parametrize(
    ("name", "function"), public_functions(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_public_function_is_typed_and_says_what_callers_need(name: str, function: Any) -> None:
    text = inspect.getdoc(function) or inspect.getdoc(_overridden(name)) or ""
    first = text.partition("\n\n")[0]
    assert re.search(r"[.:](\s|$)", first), f"{name}: {first!r}"
    signature = inspect.signature(function)
    arguments = {one: value for one, value in signature.parameters.items() if one not in ("self", "cls")}
    assert signature.return_annotation is not signature.empty
    assert all(value.annotation is not value.empty for value in arguments.values())
    unsaid = [one for one in arguments if not re.search(rf"\b{one}\b", text)]
    assert not unsaid or ELSEWHERE.search(text) or text.startswith("Refuse"), f"{name} does not say what {unsaid} are"
    annotations = [str(signature.return_annotation), *(str(value.annotation) for value in arguments.values())]
    leaked = [each for each in annotations if re.search(r"(?<![\w.])_[A-Za-z]", each)]
    assert not leaked, f"{name} has private types: {leaked}"


def _overridden(name: str) -> Any:
    kind, _, member = name.partition(".")
    for base in getattr(heliograph, kind).__mro__[1:]:
        if member in vars(base):
            found = vars(base)[member]
            return found.fget if isinstance(found, property) else found
    return None


def test_dir_shows_the_public_names_only() -> None:
    assert {name for name in dir(heliograph) if not name.startswith("__")} == set(heliograph.__all__)
