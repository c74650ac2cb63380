"""``helio bookies replace``, ``recover`` and ``move``: the calls they make, their order, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.base.errors import BadRequestError, ConflictError
from heliograph.cli.app import app
from heliograph.cluster import replacement

DEAD = {"bookie": "bookie-2", "is_alive": False, "ledgers_left": 3}
ALIVE = {**DEAD, "is_alive": True}
DONE = {**ALIVE, "ledgers_left": 0}
PERMITTED = {"bookie": "bookie-2", "ledgers": 3}


class Cluster:
    """An auditor that answers from a list; it records the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.done: list[str] = []
        self._answers = list(answers)
        monkeypatch.setattr(replacement, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(replacement, "ask", self.ask)
        monkeypatch.setattr(replacement, "has_operator", lambda namespace: False)
        monkeypatch.setattr(replacement, "existing", lambda name, namespace: None)
        monkeypatch.setattr(replacement, "remove", lambda names, namespace: self.done.append(f"end {names[0]}"))
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


def test_a_bookie_is_stopped_for_a_move_unless_others_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, None, ConflictError("too few"))
    assert "move its directories" in helio("move", "bookie-2").output
    assert cluster.done == ["may_stop_bookie", "end bookie-2"]
    assert isinstance(helio("move", "bookie-2").exception, ConflictError)
    assert cluster.done[2:] == ["may_stop_bookie"]
    helio("move", "bookie-2", "--force")
    assert cluster.done[3:] == ["end bookie-2"]
