"""``helio bookies replace``, ``recover``, ``move``, ``hold``, ``place``: the wishes they store, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.base.errors import BadRequestError, ConflictError
from heliograph.metadata.operator_records import WishKind, WishState
from tests.unit.cli.test_decommission import Operator, helio

FORCED = {"force": "although topics need it"}
SERVES = {
    "address": "10.0.0.2", "journal_directories": ["/b/j"], "data_directories": ["/b/l"], "serving": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "kind", "arguments", "says"),
    [
        ("replace bookie-2 --empty-disk", WishKind.REPLACE, {}, "has its copies again"),
        (
            "replace bookie-2 --empty-disk --accept-loss",
            WishKind.REPLACE,
            {"loss": "although entries may be lost"},
            "has its copies again",
        ),
        ("recover bookie-2", WishKind.RECOVER, {}, "every ledger of bookie-2 has its copies"),
        ("move bookie-2 --to /b", WishKind.MOVE, {"to": "/b"}, "bookie-2 serves on 10.0.0.2 from /b/j, /b/l"),
        (
            "move bookie-2 --to /b --journal-to /fast --node 10.0.0.2 --force",
            WishKind.MOVE,
            {"to": "/b", "journals": "/fast", "node": "10.0.0.2", **FORCED},
            "serves on 10.0.0.2",
        ),
        ("hold bookie-2", WishKind.HOLD, {}, "copy its directories whole, then helio bookies place bookie-2 --node"),
        ("hold bookie-2 --force", WishKind.HOLD, FORCED, "is stopped"),
        ("place bookie-2 --node 10.0.0.2", WishKind.PLACE, {"node": "10.0.0.2"}, "bookie-2 serves on 10.0.0.2"),
        (
            "place bookie-2 --node 10.0.0.2 --at /b --journal-at /fast",
            WishKind.PLACE,
            {"node": "10.0.0.2", "at": "/b", "journals": "/fast"},
            "bookie-2 serves",
        ),
    ],
)
def test_each_command_stores_its_wish(
    monkeypatch: pytest.MonkeyPatch, command: str, kind: WishKind, arguments: dict[str, str], says: str
) -> None:
    operator = Operator(monkeypatch, WishState.DONE, SERVES)
    shown = helio("bookies", *command.split())
    assert shown.exit_code == 0, shown.output
    assert operator.asked == [(kind, "bookie-2", arguments)]
    assert says in " ".join(shown.output.split())
    found = json.loads(helio("bookies", *command.split(), "--json").stdout)
    assert found == {"bookie": "bookie-2", **SERVES, "done": True}


def test_a_replacement_has_to_be_confirmed_and_a_move_to_go_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Operator(monkeypatch, WishState.DONE, SERVES)
    refused = helio("bookies", "replace", "bookie-2").exception
    assert isinstance(refused, BadRequestError)
    assert str(refused).startswith("this gives up what the disks of bookie-2 held: confirm with --empty-disk")
    assert "--to" in helio("bookies", "move", "bookie-2").output
    assert operator.asked == []


@pytest.mark.parametrize("command", ["replace bookie-2 --empty-disk", "recover bookie-2", "move bookie-2 --to /b"])
def test_a_wait_that_is_too_short_exits_with_1_and_a_refusal_is_raised(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    Operator(monkeypatch, WishState.ACCEPTED, {"ledgers_left": 3}, "3 ledgers to be repaired")
    shown = helio("bookies", *command.split(), "--wait", "0", "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout) == {"bookie": "bookie-2", "ledgers_left": 3, "done": False}
    assert "3 ledgers to be repaired" in helio("bookies", *command.split(), "--wait", "0").output
    Operator(monkeypatch, WishState.REFUSED, {}, "bookie-2 serves")
    assert isinstance(helio("bookies", *command.split()).exception, ConflictError)


@pytest.mark.parametrize("command", ["move bookie-2 --to /b", "place bookie-2 --node 10.0.0.2"])
def test_a_bookie_that_does_not_serve_there_says_why(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    Operator(monkeypatch, WishState.DONE, {**SERVES, "serving": False}, "does not start: CookieMismatchError")
    shown: Any = helio("bookies", *command.split())
    assert shown.exit_code == 1
    assert "does not serve yet: does not start: CookieMismatchError" in shown.output
