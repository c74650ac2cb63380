"""The product's source as the rules see it: files, their imports and their functions, read with ``ast``."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("heliograph", "metadata", "actors", "gateway", "pipelines")
GENERATED = {"heliograph/protocol/pulsar_pb2.py"}


@dataclass(frozen=True)
class SourceFile:
    """One Python file; ``name`` is its path from the root, with forward slashes."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @property
    def module(self) -> str:
        parts = self.name.removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def imports(self) -> set[str]:
        """Absolute names of all modules that the file imports, wherever the import stands."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
        return names

    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def product_files() -> list[SourceFile]:
    """Every file of the product that a person wrote."""
    return [
        SourceFile(path.relative_to(ROOT).as_posix(), path.read_text())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in GENERATED
    ]


def files_of_tests() -> list[SourceFile]:
    """Every test file but the rules themselves."""
    return [
        SourceFile(path.relative_to(ROOT).as_posix(), path.read_text())
        for path in sorted((ROOT / "tests").rglob("*"))
        if path.suffix in {".py", ".txt"} and "rules" not in path.parts
    ]
