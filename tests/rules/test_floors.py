"""The floors of ARCHITECTURE.md: a folder's rooms (its folders and files) import only rooms on lower floors."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.rules.source import LINKED, ROOT, SourceFile, files_below, product_files

ROW = re.compile(r"^\| `([\w/]+)/` \| ([^|]+) \|$", re.MULTILINE)
FILES_MAX = 15  # in a folder


def floors() -> dict[str, list[set[str]]]:
    """Return the table "Floors" of ARCHITECTURE.md: for each folder, the rooms of each floor, lowest first."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("## Floors")[2].partition("\n## ")[0]
    return {
        module_of(folder): [set(floor.split()) for floor in rooms.replace("`", "").split("<")]
        for folder, rooms in ROW.findall(table)
    }


def module_of(folder: str) -> str:
    parts = folder.split("/")
    return ".".join(["heliograph", *parts] if parts[0] in LINKED else parts)


@cache
def imported(file: SourceFile, *, at_run_time: bool = False) -> frozenset[str]:
    """Return our modules that the file imports; ``at_run_time`` leaves out imports for type checkers."""
    modules = known_modules()
    skipped: set[ast.AST] = set()
    found = set()
    for node in file.nodes:
        if at_run_time and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.update(each for child in node.body for each in ast.walk(child))
        if node in skipped or not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            found.add(name if name in modules else node.module)
    return frozenset(found & modules)


@cache
def product_files_once() -> list[SourceFile]:
    return product_files()


@cache
def known_modules() -> frozenset[str]:
    return frozenset(file.module for file in product_files_once())


def room(module: str, folder: str) -> str | None:
    """Return the room of ``folder`` that holds the module; None if it is elsewhere or is the folder itself."""
    return module.removeprefix(folder + ".").split(".")[0] if module.startswith(folder + ".") else None


def arrows(folder: str, *, at_run_time: bool = False) -> dict[tuple[str, str], list[str]]:
    """Return the arrows between the rooms of one folder, each with its imports.

    Between two files of one folder only imports at run time count: type checkers may see more.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for file in product_files_once():
        source = room(file.module, folder)
        if source is None:
            continue
        for name in imported(file):
            target = room(name, folder)
            if target is None or target == source:
                continue
            is_between_files = file.module == f"{folder}.{source}" and name == f"{folder}.{target}"
            if (at_run_time or is_between_files) and name not in imported(file, at_run_time=True):
                continue
            found.setdefault((source, target), []).append(f"{file.name} imports {name}")
    return found


def folders_with_rooms() -> list[str]:
    """Return every folder of the package that holds folders."""
    packages = {file.module for file in product_files_once() if file.is_package}
    return sorted({package.rpartition(".")[0] for package in packages} - {""})


def all_folders() -> list[str]:
    return sorted({file.module for file in product_files_once() if file.is_package})


def test_every_folder_that_holds_folders_has_a_row() -> None:
    assert sorted(floors()) == folders_with_rooms()


@pytest.mark.parametrize("folder", sorted(floors()))
def test_rooms_import_only_lower_floors(folder: str) -> None:
    level = {name: floor for floor, names in enumerate(floors()[folder]) for name in names}
    there = {found for file in product_files_once() if (found := room(file.module, folder)) is not None}
    assert set(level) == there, f"the row of {folder} names {set(level) - there}, and not {there - set(level)}"
    wrong = [
        reason
        for (source, target), reasons in arrows(folder).items()
        if level[source] <= level[target]
        for reason in reasons
    ]
    assert not wrong, "\n".join(wrong)


def cycle(edges: Iterable[tuple[str, str]]) -> list[str] | None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for source, target in edges:
        sorter.add(source, target)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


@pytest.mark.parametrize("folder", all_folders())
def test_no_circle_at_run_time(folder: str) -> None:
    assert cycle(arrows(folder, at_run_time=True)) is None


@pytest.mark.parametrize("top", ["heliograph", *LINKED, "examples", "tests", "tools"])
def test_folders_are_small(top: str) -> None:
    counts = Counter(file.name.rpartition("/")[0] for file in files_below(top, ".py"))
    wide = {folder: count for folder, count in counts.items() if count > FILES_MAX}
    assert not wide, f"more than {FILES_MAX} files: {wide}"
