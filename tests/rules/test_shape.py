"""Files and functions that fit in the head; packages whose ``__init__`` only exports; errors in one tree."""

from __future__ import annotations

import ast

import pytest

from tests.rules.source import SourceFile, product_files

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
OUTSIDE_THE_TREE = {"SystemExit"}


@pytest.mark.parametrize("file", product_files(), ids=lambda file: file.name)
def test_sizes(file: SourceFile) -> None:
    lines = file.text.count("\n")
    assert lines <= FILE_LINES_MAX, f"{file.name} has {lines} lines: split it by noun"
    for function in file.functions():
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        assert length <= FUNCTION_LINES_MAX, f"{file.name}: {function.name} has {length} lines"


@pytest.mark.parametrize(
    "file", [f for f in product_files() if f.name.endswith("__init__.py")], ids=lambda file: file.name
)
def test_packages_only_export(file: SourceFile) -> None:
    for node in file.tree.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_all = isinstance(node, ast.Assign) and all(
            isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets
        )
        assert is_docstring or is_all or isinstance(node, ast.Import | ast.ImportFrom), f"{file.name}:{node.lineno}"


@pytest.mark.parametrize("file", product_files(), ids=lambda file: file.name)
def test_every_module_says_what_it_is(file: SourceFile) -> None:
    assert ast.get_docstring(file.tree), f"{file.name} has no docstring"


def test_errors_form_one_tree() -> None:
    known = {"HeliographError"}
    classes = {
        node.name: {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
        for file in product_files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ClassDef)
    }
    while True:
        more = {name for name, bases in classes.items() if bases & known} - known
        if not more:
            break
        known |= more
    strays = [name for name in classes if name.endswith("Error") and name not in known]
    assert not strays, f"these errors are outside the tree of heliograph/errors.py: {strays}"
