"""``helio doctor`` tries the doors of a cluster without credentials, as another user where it can."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import heliograph
from heliograph.base.home import ClusterHome
from heliograph.cluster.doctor import secrecy, stranger
from heliograph.cluster.doctor.finding import CheckResult, Severity
from heliograph.cluster.doctor.stranger import Attempt, PartDoor
from heliograph.report.asking import ask_report
from heliograph.standalone import parts

is_root = os.geteuid() == 0


@pytest.fixture
def home() -> Iterator[Path]:
    """A home whose parents are open to all users, as those of pytest's own directories are not."""
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as directory:
        yield Path(directory)


def tried(home: Path) -> dict[str, Attempt]:
    """Attack a cluster; return the outcomes by their targets' parts, or names of files."""
    state = ClusterHome(home).load()
    assert state is not None
    doors = secrecy.doors_of(state, ask_report(state, ClusterHome(home).secret()))
    assert {door.kind for door in doors} == {"metadata", "bookie", "broker"}
    uid, found = stranger.attempts(doors, secrecy.files_of(state, ClusterHome(home)))
    assert (uid != os.geteuid()) == is_root
    return {each.part + (" by Unix socket" if "Unix" in each.target else "") or each.target: each for each in found}


def test_a_stranger_gets_nothing_behind_the_broker(home: Path) -> None:
    with heliograph.local(home):
        (home / "data" / "open").write_text("")  # of a mode that says nothing: the folder above is closed
        found = tried(home)
    assert {name for name, each in found.items() if each.given} == {"broker-1"}, "dev authenticates nobody"
    assert found["metadata"].refusal.startswith("the metadata store asks for the cluster's secret")
    assert found["bookie-1"].refusal == "unauthorized"
    if is_root:
        assert found["broker-1 by Unix socket"].refusal
        assert found["bookie-1 by Unix socket"].refusal
        assert {found[str(home)].refusal, found[str(home / "data")].refusal} == {"Permission denied"}


def test_doors_without_a_secret_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "new_secret", lambda: None)
    with heliograph.local(home):
        home.chmod(0o755)
        found = tried(home)
    assert found["metadata"].given == "a session that reads and changes all metadata"
    assert "statistics" in found["bookie-1"].given
    assert not is_root or found[str(home)].given, "another user lists the home"


def test_a_door_that_nobody_holds_counts_neither_way() -> None:
    kinds = ("metadata", "bookie", "broker", "gateway", "etcd")
    _, found = stranger.attempts([PartDoor(kind, kind, "127.0.0.1:1") for kind in kinds])
    assert {(each.given, each.refusal) for each in found} == {("", "")}


def test_a_container_without_other_users_tries_doors_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(stranger, "NOBODY", -2)  # which no kernel takes
    uid, found = stranger.attempts([PartDoor("bookie-1", "bookie", "127.0.0.1:1")], [Path("/")])
    assert (uid, [each.part for each in found]) == (0, ["bookie-1"])


def attempt(kind: str, given: str = "", refusal: str = "") -> Attempt:
    return Attempt(f"{kind}-1", kind, "127.0.0.1:9", given, refusal)


OPEN: Callable[[str], Attempt] = lambda kind: attempt(kind, given="all")  # noqa: E731
CLOSED: Callable[[str], Attempt] = lambda kind: attempt(kind, refusal="no")  # noqa: E731


@pytest.mark.parametrize(
    ("found", "is_authenticated", "expected"),
    [
        ([CLOSED("bookie"), CLOSED("broker")], True, {"doors": Severity.OK, "callers": Severity.OK}),
        ([CLOSED("bookie"), OPEN("broker")], True, {"doors": Severity.OK, "callers": Severity.PROBLEM}),
        ([OPEN("bookie"), CLOSED("broker")], True, {"doors": Severity.PROBLEM, "callers": Severity.OK}),
        ([OPEN("etcd")], False, {"doors": Severity.WARNING}),
        ([OPEN("etcd")], True, {"doors": Severity.PROBLEM, "callers": Severity.WARNING}),
        ([CLOSED("metadata"), OPEN("gateway")], None, {"doors": Severity.OK, "callers": Severity.WARNING}),
        ([attempt("broker")], True, {"callers": Severity.WARNING}),  # it was not reached, so nothing is praised
        ([OPEN("broker")], False, {}),
    ],
)
def test_only_a_refusal_is_praised(
    found: list[Attempt], is_authenticated: bool | None, expected: dict[str, Severity]
) -> None:
    judged: Iterator[CheckResult] = secrecy.judge_attempts(65_534, found, is_authenticated=is_authenticated)
    assert {result.check: result.severity for result in judged} == expected
