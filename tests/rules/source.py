"""The product's sources for the rules: files, their imports and their functions, read with ``ast``."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

Node = TypeVar("Node", bound=ast.AST)

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("heliograph", "metadata", "actors", "gateway", "pipelines")  # where the package's modules are kept
LINKED = ("metadata", "actors", "gateway", "pipelines")  # imported as heliograph.<folder>, through symbolic links
GENERATED = {"heliograph/protocol/pulsar_pb2.py"}


@dataclass(frozen=True)
class SourceFile:
    """One Python file; ``name`` is its path from the root, with forward slashes."""

    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parsed(self)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Return every node of the tree, the module first."""
        return _nodes(self)

    @property
    def module(self) -> str:
        """Return the module name of the file."""
        parts = self.name.removesuffix(".py").split("/")
        if parts[0] in LINKED:
            parts.insert(0, "heliograph")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        return self.name.endswith("__init__.py")

    def imports(self) -> set[str]:
        """Return the absolute names of all modules that the file imports, also inside functions."""
        return _imports(self)

    def of_kind(self, *kinds: type[Node]) -> list[Node]:
        """Return the nodes of these kinds, by kind."""
        found = _by_kind(self)
        return [cast(Node, node) for kind in kinds for node in found.get(kind, ())]

    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return self.of_kind(ast.FunctionDef, ast.AsyncFunctionDef)

    def classes(self) -> list[ast.ClassDef]:
        return self.of_kind(ast.ClassDef)


@cache  # most rules read most files
def _parsed(file: SourceFile) -> ast.Module:
    return ast.parse(file.text, file.name)


@cache
def _nodes(file: SourceFile) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parsed(file)))


@cache
def _by_kind(file: SourceFile) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in _nodes(file):
        found.setdefault(type(node), []).append(node)
    return found


@cache
def _imports(file: SourceFile) -> set[str]:
    names = {alias.name for node in file.of_kind(ast.Import) for alias in node.names}
    for node in file.of_kind(ast.ImportFrom):
        if node.level == 0 and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@cache
def _text_of(path: Path) -> str:
    return path.read_text()


def forget() -> None:
    """Let go of the trees, millions of objects."""
    for cached in (_parsed, _nodes, _by_kind, _imports, _text_of, _paths_below):
        cached.cache_clear()


def files_below(folder: str, *suffixes: str) -> list[SourceFile]:
    """Return every file below a folder whose name ends in one of ``suffixes``; symbolic links are not followed."""
    return [SourceFile(name, _text_of(ROOT / name)) for name in _paths_below(folder) if name.endswith(suffixes)]


@cache
def _paths_below(folder: str) -> list[str]:
    found = []
    for path, folders, names in os.walk(ROOT / folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        parent = Path(path).relative_to(ROOT).as_posix()
        found += [f"{parent}/{name}" for name in sorted(names)]
    return found


def product_files() -> list[SourceFile]:
    """Return every file of the product that is not generated."""
    return [file for folder in FOLDERS for file in files_below(folder, ".py") if file.name not in GENERATED]


def example_files() -> list[SourceFile]:
    """Return every file of the examples, which are not in the wheel."""
    return files_below("examples", ".py")


def files_of_tests() -> list[SourceFile]:
    """Return every test file except the rules themselves."""
    return [file for file in files_below("tests", ".py", ".txt") if "/rules/" not in file.name]


def for_each(files: Callable[[], list[SourceFile]]) -> Callable[[Callable[[SourceFile], None]], Callable[[], None]]:
    """Make one test of a rule for files: it fails with the breaches of all of them.

    A test for each file and rule would be ten thousand, and pytest takes longer to count them than to run them.
    """

    def decorate(rule: Callable[[SourceFile], None]) -> Callable[[], None]:
        def test() -> None:
            breaches = []
            for file in files():
                try:
                    rule(file)
                except AssertionError as error:
                    breaches.append(str(error))
            assert not breaches, "\n".join(breaches)

        test.__name__, test.__qualname__, test.__doc__ = rule.__name__, rule.__qualname__, rule.__doc__
        return test

    return decorate
