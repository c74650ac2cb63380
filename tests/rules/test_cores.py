"""Cores do no I/O: what they may not import or call. Time and randomness are passed in (DESIGN rule D3)."""

from __future__ import annotations

import ast

import pytest

from tests.rules.source import ROOT, SourceFile, product_files

# Folders whose files are cores, but for the shells named here; then single files of other folders.
CORE_FOLDERS: dict[str, tuple[str, ...]] = {"actors/ledger/": ("driver/", "directory.py"), "heliograph/protocol/": ()}
CORE_FILES = {
    "metadata/tree.py",
    "actors/broker/dedup.py",
    "actors/broker/dedup_record.py",
    "actors/broker/backlog_size.py",
} | {
    f"metadata/endpoint/{name}.py"
    for name in ("acl", "codes", "frames", "jute", "replies", "requests", "statistics", "watchboard")
}
BANNED_MODULES = {"time", "asyncio", "socket", "ray", "threading", "subprocess", "selectors", "uvloop", "secrets", "os"}
BANNED_CALLS = {"open", "print", "input", "exec", "eval"}
BANNED_RANDOM = {"random", "randint", "choice", "choices", "shuffle", "sample", "uniform", "randrange", "seed"}


def cores() -> list[SourceFile]:
    found = []
    for file in product_files():
        folder = next((f for f in CORE_FOLDERS if file.name.startswith(f)), None)
        if file.name in CORE_FILES or (folder and not file.name.removeprefix(folder).startswith(CORE_FOLDERS[folder])):
            found.append(file)
    return found


@pytest.mark.parametrize("file", cores(), ids=lambda file: file.name)
def test_core_imports_nothing_that_does_io(file: SourceFile) -> None:
    wrong = {name for name in file.imports() if name.split(".")[0] in BANNED_MODULES}
    assert not wrong, f"{file.name} is a core and imports {sorted(wrong)}"


@pytest.mark.parametrize("file", cores(), ids=lambda file: file.name)
def test_core_calls_nothing_that_does_io(file: SourceFile) -> None:
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            assert node.func.id not in BANNED_CALLS, f"{file.name}:{node.lineno} calls {node.func.id}()"
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            called = (node.func.value.id, node.func.attr)
            assert not (called[0] == "random" and called[1] in BANNED_RANDOM), f"{file.name}:{node.lineno} {called}"


def test_named_files_exist() -> None:
    missing = [name for name in CORE_FILES if not (ROOT / name).is_file()]
    missing += [f + s for f, shells in CORE_FOLDERS.items() for s in shells if not (ROOT / f / s).exists()]
    assert not missing
