"""``helio bookies decommission`` and ``helio scale``: the wishes they store, and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.base.errors import ClusterNotFoundError, ConflictError, NotFoundError
from heliograph.base.home import ClusterHome
from heliograph.cli.app import app
from heliograph.client import discovery
from heliograph.client.admin.part_access import PartAccess
from heliograph.cluster import wishing
from heliograph.cluster.settings.file import SettingsFile
from heliograph.cluster.settings.location import FILE_NAME
from heliograph.metadata.operator_records import Wish, WishKind, WishState

OUT = {"bookie": "bookie-2", "done": True, "ledgers_left": 0, "data_deleted": False}


class Operator:
    """An operator that ends each wish in one way; it records the wishes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, state: WishState, outcome: dict[str, Any], note: str = ""
    ) -> None:
        self.asked: list[tuple[WishKind, str, dict[str, str]]] = []
        self._answer = (state, outcome, note)
        monkeypatch.setattr(wishing, "wished", self.wished)

    def wished(self, kind: WishKind, subject: str, arguments: dict[str, str], *_: Any, **options: Any) -> Wish:
        self.asked.append((kind, subject, arguments))
        state, outcome, note = self._answer
        if state is WishState.REFUSED:
            raise ConflictError(note)
        options["progress"]("1 more bookies are wanted")
        return Wish(kind, subject, arguments, 1, state, note, outcome)


def helio(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def decommission(*arguments: str) -> Any:
    return helio("bookies", "decommission", "bookie-2", *arguments)


def test_a_bookie_is_taken_out_and_its_data_stays_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Operator(monkeypatch, WishState.DONE, OUT)
    assert json.loads(decommission("--json").output) == OUT
    assert "directories can be deleted" in decommission().output
    assert operator.asked == [(WishKind.DECOMMISSION, "bookie-2", {})] * 2


def test_its_data_is_deleted_with_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Operator(monkeypatch, WishState.DONE, {**OUT, "data_deleted": True})
    shown = decommission("--delete-data")
    assert shown.exit_code == 0, shown.output
    assert "bookie-2 is out of the cluster, with its data" in shown.output
    assert operator.asked == [(WishKind.DECOMMISSION, "bookie-2", {"data": "with its data"})]


def test_a_wait_that_is_too_short_exits_with_1_and_names_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    left = {**OUT, "done": False, "ledgers_left": 2}
    Operator(monkeypatch, WishState.ACCEPTED, left, "bookie-2 is being emptied: 2 ledgers to be moved")
    shown = decommission("--wait", "0")
    assert shown.exit_code == 1
    assert "2 ledgers to be moved" in shown.output
    assert json.loads(decommission("--wait", "0", "--json").stdout) == left
    Operator(monkeypatch, WishState.ASKED, {})
    assert "no operator has begun" in decommission("--wait", "0").output


def test_cancelling(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Operator(monkeypatch, WishState.DONE, {"bookie": "bookie-2", "cancelled": True})
    assert "bookie-2 stays" in decommission("--cancel").output
    assert operator.asked == [(WishKind.KEEP, "bookie-2", {})]


def test_a_refusal_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    Operator(monkeypatch, WishState.REFUSED, {}, "bookie-2 cannot go")
    assert isinstance(decommission().exception, ConflictError)  # which main() turns into a line and exit code 1


@pytest.mark.parametrize(("state", "code"), [(WishState.DONE, 0), (WishState.ASKED, 1)])
def test_a_number_is_kept_for_the_next_start_however_long_the_command_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: WishState, code: int
) -> None:
    file = SettingsFile(ClusterHome(tmp_path).directory / FILE_NAME)
    file.create({"bookies": 3})
    Operator(monkeypatch, state, {"wanted_bookies": 5})
    shown = helio("scale", "bookies", "5", "--wait", "0", "--json", "--home", str(tmp_path))
    assert shown.exit_code == code, shown.output
    assert json.loads(shown.stdout) == {"kind": "bookies", "count": 5, "done": not code, "wanted_bookies": 5}
    assert file.values()["bookies"] == 5


@pytest.mark.parametrize("later", [2, 7])
def test_a_number_that_is_refused_is_not_kept_unless_another_was_asked_for_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    file = SettingsFile(ClusterHome(tmp_path).directory / FILE_NAME)
    file.create({"bookies": 3})

    def refuse(*_: Any, **__: Any) -> Wish:
        assert file.values()["bookies"] == 2
        file.replace(file.text_with("bookies", later))
        raise ConflictError("too few")

    monkeypatch.setattr(wishing, "wished", refuse)
    shown = helio("scale", "bookies", "2", "--home", str(tmp_path))
    assert isinstance(shown.exception, ConflictError)
    assert file.values()["bookies"] == (3 if later == 2 else 7)


def test_a_cluster_without_an_auditor_has_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = PartAccess("heliograph", None, lambda: None)

    def no_actor(name: str, namespace: str) -> Any:
        raise ClusterNotFoundError("no actor")

    monkeypatch.setattr(discovery, "actor", no_actor)
    monkeypatch.setattr(discovery, "is_attached", lambda: False)
    with pytest.raises(ClusterNotFoundError):
        parts.ask_one("auditor", "repair_status")
    monkeypatch.setattr(discovery, "is_attached", lambda: True)
    monkeypatch.setattr(discovery, "actor_names", lambda namespace: ["broker-1"])
    with pytest.raises(NotFoundError, match="no auditor"):
        parts.ask_one("auditor", "repair_status")
