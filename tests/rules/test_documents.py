"""The documents name only files that exist, and the invariants are kept, checked and tested."""

from __future__ import annotations

import re

import pytest

from tests.rules.source import ROOT, files_of_tests

DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", *sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")
)]  # fmt: skip
PATH = re.compile(r"`([A-Za-z_.][\w./-]*/[\w.-]+\.(?:py|md|toml|txt|json|proto|lock)|[\w-]+\.(?:md|toml|lock))`")
ROW = re.compile(r"^\| (I\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)
INVARIANTS = [f"I{n}" for n in (*range(1, 17), *range(19, 25))]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_named_files_exist(name: str) -> None:
    folder = (ROOT / name).parent
    missing = [
        path
        for path in PATH.findall((ROOT / name).read_text())
        if not (ROOT / path).exists() and not (folder / path).exists()
    ]
    assert not missing, f"{name} names files that do not exist: {missing}"


def test_each_decision_has_a_number_of_its_own() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [name.partition("-")[0] for name in names if name[0].isdigit()]
    assert len(numbers) == len(set(numbers)), names


def rows() -> dict[str, list[str]]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return {number: re.findall(r"`([^`]+)`", files) for number, files in ROW.findall(text)}


def test_every_invariant_is_listed() -> None:
    assert sorted(rows(), key=lambda n: int(n[1:])) == INVARIANTS


def cites(text: str, number: str) -> bool:
    return re.search(rf"(?:#|\(|\b){number}\b", text) is not None


@pytest.mark.parametrize("number", INVARIANTS)
def test_invariant_is_kept_where_the_page_says(number: str) -> None:
    files = rows()[number]
    if files == ["not built yet"]:
        pytest.fail(f"{number} has no file")
    for name in files:
        assert cites((ROOT / name).read_text(), number), f"{name} does not cite {number}"


@pytest.mark.parametrize("number", INVARIANTS)
def test_invariant_has_a_test(number: str) -> None:
    assert any(cites(file.text, number) for file in files_of_tests()), f"no test cites {number}"


def test_readme_is_short() -> None:
    assert (ROOT / "README.md").read_text().count("\n") < 150


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "heliograph" / "py.typed").exists()
