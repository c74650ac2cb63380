"""The tables of states: ARCHITECTURE.md draws each of them, and nothing changes a state behind the table's back."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from typing import Any

import pytest

from heliograph.base.lifecycle import Lifecycle
from tests.rules.source import ROOT, SourceFile, for_each, product_files

SECTION = re.compile(r"^## States\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^### `(\w+)` of `(\w+)` \(`([\w./]+)`\)\n\n((?:\|.*\n)+)", re.MULTILINE)
HEAD = "| state | means | may move to |\n|---|---|---|\n"


@cache
def lifecycles() -> dict[str, tuple[str, Lifecycle[Any]]]:
    """Return each table of states with its file, by the name of the enum."""
    found = {}
    for file in product_files():
        for node in file.tree.body:
            value = node.value if isinstance(node, ast.Assign) else None
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "Lifecycle":
                assert isinstance(node, ast.Assign)
                table = getattr(importlib.import_module(file.module), ast.unparse(node.targets[0]))
                found[table.states.__name__] = (file.name, table)
    return found


def drawn() -> dict[str, tuple[str, str, str]]:
    """Return owner, file and rows of each table in ARCHITECTURE.md, by the name of the enum."""
    section = SECTION.search((ROOT / "ARCHITECTURE.md").read_text())
    assert section, "ARCHITECTURE.md has a section States"
    return {name: (owner, file, rows) for name, owner, file, rows in TABLE.findall(section[1])}


def draw(table: Lifecycle[Any]) -> str:
    rows = (
        f"| `{state.name}` | {table.meanings[state]} | "
        + (", ".join(f"`{to.name}`" for to in table.moves if to in table.moves[state]) or "-")
        + " |\n"
        for state in table.moves
    )
    return HEAD + "".join(rows)


def test_every_table_is_drawn_and_no_other() -> None:
    assert sorted(drawn()) == sorted(lifecycles())


@pytest.mark.parametrize("name", sorted(lifecycles()))
def test_the_drawing_is_the_table(name: str) -> None:
    home, table = lifecycles()[name]
    owner, file, rows = drawn()[name]
    assert file == home
    assert any(node.name == owner for product in product_files() for node in product.classes())
    assert rows == draw(table), f"draw it as:\n{draw(table)}"


@pytest.mark.parametrize("name", sorted(lifecycles()))
def test_every_state_can_be_left_or_is_final_and_can_be_reached(name: str) -> None:
    _, table = lifecycles()[name]
    first = next(iter(table.moves))
    reached = {first}
    while more := {to for state in reached for to in table.moves[state]} - reached:
        reached |= more
    assert reached == set(table.moves), f"the first state of {name} is the one that a new object has"
    assert any(not moves for moves in table.moves.values()), "a life ends"


@for_each(product_files)
def test_states_change_by_the_table_only(file: SourceFile) -> None:
    """Outside ``__init__`` no attribute is set to a member of such an enum."""
    setup = {node for function in file.functions() if function.name == "__init__" for node in ast.walk(function)}
    assigned: list[ast.Assign | ast.AnnAssign] = [*file.of_kind(ast.Assign), *file.of_kind(ast.AnnAssign)]
    for node in assigned:
        if node in setup or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not any(isinstance(target, ast.Attribute) for target in targets):
            continue
        values = [each for each in ast.walk(node.value) if isinstance(each, ast.Attribute)]
        is_move = isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith(".move")
        states = {ast.unparse(each.value) for each in values} & set(lifecycles())
        assert is_move or not states, f"{file.name}:{node.lineno} sets a state: use the table's move()"
