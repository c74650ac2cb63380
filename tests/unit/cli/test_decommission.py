"""``helio bookies decommission``: the calls it makes, their order, and what it prints."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.base.errors import ClusterNotFoundError, ConflictError, NotFoundError, ServiceNotReadyError
from heliograph.cli.app import app
from heliograph.client import discovery
from heliograph.cluster import decommission

NOT_YET = {"bookie": "bookie-2", "is_read_only": False, "ledgers_left": 3, "ledgers_open": 1, "is_drained": False}
MOVING = {**NOT_YET, "is_read_only": True, "ledgers_left": 2}
DRAINED = {**MOVING, "ledgers_left": 0, "ledgers_open": 0, "is_drained": True}


class Cluster:
    """An auditor that answers from a list, and a bookie; it records what happens to both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any, finish: tuple[Any, ...] = (None,)) -> None:
        self.done: list[str] = []
        self._answers, self._finish = list(answers), list(finish)
        self.has_process = True
        monkeypatch.setattr(decommission, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(decommission, "ask", self.ask)
        monkeypatch.setattr(decommission, "remove", lambda names, namespace: self.done.append(f"end {names[0]}"))
        monkeypatch.setattr(decommission, "has_operator", lambda namespace: False)
        monkeypatch.setattr(decommission, "existing", self.existing)
        monkeypatch.setattr(decommission, "ray", SimpleNamespace(get=lambda call, timeout: call, exceptions=None))
        monkeypatch.setattr("heliograph.cli.options.discovery.attach", lambda namespace, home: None)

    def ask(self, namespace: str, method: str, bookie_id: str) -> Any:
        self.done.append(method)
        answer = (self._finish if method == "finish_decommission" else self._answers).pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def existing(self, name: str, namespace: str) -> Any:
        if not self.has_process:
            return None
        return SimpleNamespace(erase=SimpleNamespace(remote=lambda: self.done.append("erase")))


def helio(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bookies", "decommission", "bookie-2", *arguments])


def without_seconds(output: str) -> str:
    """Return lines of a step that takes long without the times that they begin with."""
    return re.sub(r"^ *\d+\.\d s  ", "", output, flags=re.MULTILINE)


def test_a_bookie_is_emptied_ended_and_forgotten_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, NOT_YET, MOVING, MOVING, DRAINED, finish=(ServiceNotReadyError("registered"), None))
    shown = helio("--delete-data")
    assert shown.exit_code == 0, shown.output
    polls = ["decommission_progress"] * 3
    assert cluster.done == [
        "decommission", *polls, "erase", "end bookie-2", "finish_decommission", "finish_decommission"
    ]  # fmt: skip
    assert without_seconds(shown.output).splitlines() == [
        "bookie-2: waiting until it accepts no more entries",
        "bookie-2: 2 ledgers to be moved, 1 of them open",
        "no ledger names bookie-2 any more",
        "bookie-2 is out of the cluster, with its data",
    ]


def test_without_the_flag_its_data_stays_and_programs_get_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, DRAINED)
    shown = helio("--json")
    assert json.loads(shown.output) == {"bookie": "bookie-2", "done": True, "ledgers_left": 0, "data_deleted": False}
    assert "erase" not in cluster.done


def test_a_dead_bookie_cannot_delete_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, DRAINED)
    cluster.has_process = False
    assert "directories can be deleted" in helio("--delete-data").output


def test_a_wait_that_is_too_short_exits_with_1_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, MOVING)
    shown = helio("--wait", "0")
    assert shown.exit_code == 1
    assert "2 ledgers are still to be moved" in shown.output
    assert cluster.done == ["decommission"]


def test_cancelling(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, None)
    assert "bookie-2 stays" in helio("--cancel").output
    assert cluster.done == ["cancel_decommission"]


def test_a_refusal_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, ConflictError("bookie-2 cannot go"), finish=())
    assert isinstance(helio().exception, ConflictError)  # which main() turns into a line and exit code 1
    assert cluster.done == ["decommission"]


def test_a_cluster_without_an_auditor_has_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_actor(name: str, namespace: str) -> Any:
        raise ClusterNotFoundError("no actor")

    monkeypatch.setattr(discovery, "actor", no_actor)
    monkeypatch.setattr(discovery, "is_attached", lambda: False)
    with pytest.raises(ClusterNotFoundError):
        decommission.ask("heliograph", "cancel_decommission", "bookie-2")
    monkeypatch.setattr(discovery, "is_attached", lambda: True)
    monkeypatch.setattr(discovery, "actor_names", lambda namespace: ["broker-1"])
    with pytest.raises(NotFoundError, match="no auditor"):
        decommission.ask("heliograph", "cancel_decommission", "bookie-2")
