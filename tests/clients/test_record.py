"""The record of what clients can do: what a run writes over the record of earlier ones."""

from __future__ import annotations

from pathlib import Path

from tests.clients.support.report import ClientMatrix, Outcome, load


def recorded(path: Path) -> set[tuple[str, str, str]]:
    return {(note.version, note.feature, note.outcome) for note in load(path)}


def test_a_run_of_some_tests_changes_only_what_it_noted(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    earlier, later = ClientMatrix(), ClientMatrix()
    for version in ("1.0", "2.0"):
        earlier.note("a client", version, "reader")
        earlier.note("a client", version, "shared")
    earlier.save(path, is_complete=True)
    later.note("a client", "2.0", "reader", Outcome.MISSING, "no reader")
    later.save(path)
    assert recorded(path) == {
        ("1.0", "reader", "works"),
        ("1.0", "shared", "works"),
        ("2.0", "reader", "missing"),
        ("2.0", "shared", "works"),
    }


def test_a_run_of_all_tests_drops_the_versions_that_are_tested_no_more(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    earlier, later = ClientMatrix(), ClientMatrix()
    earlier.note("a client", "1.0", "reader")
    earlier.note("another client", "1.0", "shared")
    earlier.save(path)
    later.note("a client", "2.0", "reader")
    later.save(path, is_complete=True)
    assert recorded(path) == {("2.0", "reader", "works"), ("1.0", "shared", "works")}
