"""``helio bookies replace``, ``recover`` and ``move``: the calls they make, their order, and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.actors.bookie.tools.copying import Ahead, CopyReport, SourceFile
from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError, ResourceError
from heliograph.cli.app import app
from heliograph.cluster import diagnosis
from heliograph.cluster.labels import BOOKIE, RACK, Node, Place
from heliograph.cluster.moving import move as moving
from heliograph.cluster.moving import transfer
from heliograph.cluster.operator import calls
from heliograph.cluster.replacement import disk, recovery

LOG = SourceFile("00000001.log", 7, 0o600, 1)
DEAD = {"bookie": "bookie-2", "is_alive": False, "ledgers_left": 3}
ALIVE = {**DEAD, "is_alive": True}
DONE = {**ALIVE, "ledgers_left": 0}
PERMITTED = {"bookie": "bookie-2", "ledgers": 3}


class Cluster:
    """An auditor that answers from a list; it records the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.done: list[str] = []
        self._answers = list(answers)
        monkeypatch.setattr(recovery, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(disk, "ask_auditor", self.ask)
        monkeypatch.setattr(calls, "ask_auditor", self.ask)
        monkeypatch.setattr(disk, "has_operator", lambda namespace: False)
        monkeypatch.setattr(disk, "existing", lambda name, namespace: None)
        monkeypatch.setattr(disk, "remove", lambda names, namespace: self.done.append(f"end {names[0]}"))
        monkeypatch.setattr("heliograph.cli.options.discovery.attach", lambda namespace, home: None)

    def ask(self, namespace: str, method: str, bookie_id: str, *rest: Any) -> Any:
        self.done.append(" ".join(map(str, (method, *rest))))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def helio(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bookies", *arguments])


def test_a_dead_disk_is_replaced_and_its_copies_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, DEAD, PERMITTED, DEAD, ALIVE, ALIVE, DONE)
    shown = helio("replace", "bookie-2", "--empty-disk")
    assert shown.exit_code == 0, shown.output
    assert cluster.done == [
        "recovery_progress", "permit_empty_disk False", "recovery_progress", "recovery_progress", "recover_bookie True",
        "recovery_progress",
    ]  # fmt: skip
    assert "helio up starts it" in shown.output
    assert "has its copies again" in shown.output


def test_a_replacement_has_to_be_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    assert isinstance(helio("replace", "bookie-2").exception, BadRequestError)
    assert cluster.done == []


def test_a_bookie_that_has_not_started_in_time_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(monkeypatch, DEAD, PERMITTED)
    shown = helio("replace", "bookie-2", "--empty-disk", "--wait", "0", "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["is_alive"] is False


def test_a_refusal_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, ALIVE, ConflictError("bookie-2 serves"))
    assert isinstance(helio("replace", "bookie-2", "--empty-disk", "--accept-loss").exception, ConflictError)
    assert cluster.done == ["recovery_progress", "permit_empty_disk True"]


def test_the_copies_of_a_lost_bookie_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, DEAD, {**DEAD, "ledgers_left": 1}, {**DEAD, "ledgers_left": 0})
    shown = helio("recover", "bookie-2")
    assert shown.exit_code == 0, shown.output
    assert cluster.done == ["recover_bookie False", "recover_bookie", "recover_bookie"]
    Cluster(monkeypatch, DEAD)
    assert helio("recover", "bookie-2", "--wait", "0").exit_code == 1


def test_a_bookie_is_stopped_for_a_move_by_hand_unless_others_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, None, ConflictError("too few"))
    stop = ("move", "bookie-2", "--already-copied")
    assert "copy its directories" in helio(*stop).output
    assert cluster.done == ["may_stop_bookie", "end bookie-2"]
    assert isinstance(helio(*stop).exception, ConflictError)
    assert cluster.done[2:] == ["may_stop_bookie"]
    helio(*stop, "--force")
    assert cluster.done[3:] == ["end bookie-2"]


class Moves:
    """A cluster with an operator in which bookie-2 can be moved. It records what is done, and fails where told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: str = "", runs: bool = True) -> None:
        self.done: list[str] = []
        self._fails = fails
        monkeypatch.setattr(moving, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(moving, "has_operator", lambda namespace: True)
        monkeypatch.setattr(moving, "ask_auditor", self.ask)
        monkeypatch.setattr(moving, "ask_operator", self.ask)
        monkeypatch.setattr(moving, "existing", lambda name, namespace: object() if runs else None)
        monkeypatch.setattr(moving, "remove", lambda names, namespace: self.done.append(f"end {names[0]}"))
        nodes = [Node("10.0.0.1", {}), Node("10.0.0.2", {BOOKIE: "true", RACK: "r2"}), Node("10.0.0.3", {})]
        monkeypatch.setattr(diagnosis, "living_nodes", lambda: nodes)
        found = moving.Directories("10.0.0.1", (Path("/a/journal"),), (Path("/a/ledgers"),))
        monkeypatch.setattr(moving, "_directories_of", lambda bookie_id, namespace: found)
        monkeypatch.setattr(transfer, "transfer_ahead", self.ahead)
        monkeypatch.setattr(transfer, "transfer", self.transfer)
        monkeypatch.setattr(transfer, "retire", lambda address, paths: [Path(f"{path}.moved") for path in paths])
        copies = ([Path("/b/bookie-2/journal")], [Path("/b/bookie-2/ledgers")])
        monkeypatch.setattr(transfer, "find_copies", lambda address, bookie_id, roots: copies)
        monkeypatch.setattr("heliograph.cli.options.discovery.attach", lambda namespace, home: None)

    def ask(self, namespace: str, method: str, bookie_id: str, *rest: Any) -> Any:
        self.done.append(" ".join(map(str, (method, *rest))))
        if method == self._fails:
            raise ConflictError("too few")
        return {"is_alive": True}

    def ahead(self, source: str, old: Any, target: str, new: Any) -> Ahead:
        self.done.append("copy ahead")
        return frozenset({(1, LOG)})

    def transfer(self, source: str, old: Any, target: str, new: Any, ahead: Ahead) -> CopyReport:
        assert ahead == {(1, LOG)}
        self.done.append(f"copy {source} {target} {' '.join(map(str, new))}")
        if self._fails == "copy":
            raise ResourceError("the disk is full", field="to")
        return CopyReport(7, 700)


def test_a_bookie_is_stopped_copied_pinned_and_started(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Moves(monkeypatch)
    shown = helio("move", "bookie-2", "--to", "/b", "--json")
    assert shown.exit_code == 0, shown.output
    assert cluster.done == [
        "may_stop_bookie",
        "copy ahead",
        "hold",
        "end bookie-2",
        "copy 10.0.0.1 10.0.0.1 /b/bookie-2/journal /b/bookie-2/ledgers",
        "place ['/b/bookie-2/journal'] ['/b/bookie-2/ledgers']",
        "release",
        "recovery_progress",
    ]
    found = json.loads(shown.stdout)
    assert (found["files"], found["bytes"], found["serving"]) == (7, 700, True)
    assert found["old_directories"] == ["/a/journal.moved", "/a/ledgers.moved"]


def test_a_bookie_goes_to_another_node_that_is_for_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Moves(monkeypatch)
    shown = helio("move", "bookie-2", "--to", "/b", "--journal-to", "/fast", "--node", "10.0.0.2")
    assert shown.exit_code == 0, shown.output
    assert "copy 10.0.0.1 10.0.0.2 /fast/bookie-2/journal /b/bookie-2/ledgers" in cluster.done
    pinned = next(line for line in cluster.done if line.startswith("place"))
    assert pinned.endswith(f"{Place({BOOKIE: 'true'}, '10.0.0.2')} r2")
    cluster.done.clear()
    for node, error in (("10.0.0.3", ConflictError), ("10.0.0.9", NotFoundError)):
        assert isinstance(helio("move", "bookie-2", "--to", "/b", "--node", node).exception, error)
    assert cluster.done == []


@pytest.mark.parametrize(
    ("fails", "arguments", "done"),
    [
        ("", ("--to", "b"), []),  # not absolute
        ("", (), []),
        ("", ("--to", "/a/journal"), []),  # below a directory of its own
        ("may_stop_bookie", ("--to", "/b"), ["may_stop_bookie"]),
    ],
)
def test_a_move_that_is_refused_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, fails: str, arguments: tuple[str, ...], done: list[str]
) -> None:
    cluster = Moves(monkeypatch, fails=fails)
    assert isinstance(helio("move", "bookie-2", *arguments).exception, BadRequestError | ConflictError)
    assert cluster.done == done


def test_a_bookie_whose_copy_fails_is_started_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Moves(monkeypatch, fails="copy")
    assert isinstance(helio("move", "bookie-2", "--to", "/b").exception, ResourceError)
    assert cluster.done[-1] == "release"
    assert not any(line.startswith("place") for line in cluster.done)


def test_copies_that_were_made_by_hand_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Moves(monkeypatch, runs=False)
    several = helio("move", "bookie-2", "--to", "/b", "--already-copied")
    assert isinstance(several.exception, BadRequestError)  # which node has them is not said
    shown = helio("move", "bookie-2", "--to", "/b", "--already-copied", "--node", "10.0.0.2")
    assert shown.exit_code == 0, shown.output
    assert [line.split()[0] for line in cluster.done] == ["place", "release", "recovery_progress"]
    Moves(monkeypatch, runs=True)
    running = helio("move", "bookie-2", "--to", "/b", "--already-copied", "--node", "10.0.0.2")
    assert isinstance(running.exception, ConflictError)
    assert "stop it" in str(running.exception)
