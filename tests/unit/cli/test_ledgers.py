"""``helio ledgers``: what it asks the auditor, and what it prints."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.exceptions
from typer.testing import CliRunner

from heliograph.base.addressing.part_handle import answers_of
from heliograph.base.errors import BadRequestError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.app import app
from heliograph.cli.operations import scrubs
from heliograph.cli.options import Target
from heliograph.client.admin.part_access import PartAccess
from heliograph.cluster.diagnosis import reason
from heliograph.cluster.joining import view

TASK = {
    "ledger_id": 7,
    "missing_bookies": ["b1", "b2"],
    "damaged_bookies": ["b2"],
    "marked_ms": 1_700_000_000_000,
    "lost_entries": 3,
    "is_abandoned": False,
    "in_repair": True,
}
LEDGER = {
    "ledger_id": 7,
    "state": "closed",
    "ensemble_size": 2,
    "write_quorum": 2,
    "ack_quorum": 2,
    "last_entry_id": 9,
    "length": 1 << 20,
    "created_ms": 0,
    "properties": {"topic": "orders"},
}
DESCRIBED = {
    "ledger": LEDGER,
    "segments": [{"first_entry_id": 0, "last_entry_id": 9, "bookies": ["b1", "b2"], "copies_least": 1}],
    "bookies": {
        "b1": {"is_alive": True, "entries_missing": 0},
        "b2": {"is_alive": False, "entries_missing": None},
    },
    "task": TASK,
}
SCRUBBED = {
    "scrub_ended_ms": 1_700_000_000_000,
    "scrub_next_ledger": 4711,
    "scrub_ledgers_left": 3,
    "scrub_entries_per_second": 12.3,
    "scrub_passes": 2,
    "scrub_damaged_entries": 5,
    "scrub_incomplete_ledgers": 0,
    "scrub_ledgers_marked": 2,
    "scrub_ledgers_mended": 1,
}
STATUS = {
    "is_paused": True,
    "are_scrubs_paused": False,
    "ledgers_left": 4,
    "ledgers_in_repair": 1,
    "ledgers_damaged": 1,
    "ledgers_without_place": 3,
    "ledgers_repaired": 2,
    "entries_repaired": 100,
    "bytes_repaired": 3 << 20,
    "repair_seconds": 2.0,
    "bytes_per_second": 1.5 * (1 << 20),
    "seconds_left": 3.0,
    "last_failure": "",
}


def helio(monkeypatch: pytest.MonkeyPatch, answer: Any, *arguments: str) -> tuple[Any, list[tuple[Any, ...]]]:
    asked: list[tuple[Any, ...]] = []

    def ask(_: PartAccess, part: str, method: str, *rest: Any) -> Any:
        assert part == "auditor"
        asked.append((method, *rest))
        return answer

    monkeypatch.setattr(PartAccess, "ask_one", ask)
    monkeypatch.setattr(PartAccess, "names", lambda _: ["auditor", "bookie-1"])
    monkeypatch.setattr(PartAccess, "ask", lambda *_: ({"bookie-1": SCRUBBED}, {}))
    return CliRunner().invoke(app, ["ledgers", *arguments]), asked


def test_ledgers_that_lack_copies_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, asked = helio(monkeypatch, {"total": 5, "tasks": [TASK]}, "under-replicated")
    assert shown.exit_code == 0, shown.output
    assert asked == [("repair_tasks",)]
    assert "b1, b2 (damaged)" in shown.output
    assert "in repair" in shown.output
    assert "4 more are not shown" in shown.output


def test_a_ledger_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, asked = helio(monkeypatch, DESCRIBED, "describe", "7")
    assert shown.exit_code == 0, shown.output
    assert asked == [("describe_ledger", 7)]
    for text in ("0 to 9", "1.00 MiB", "orders", "no answer", "3 entries have no good copy"):
        assert text in shown.output
    as_json, _ = helio(monkeypatch, DESCRIBED, "describe", "7", "--json")
    assert json.loads(as_json.stdout)["segments"] == DESCRIBED["segments"]


def test_the_progress_of_repair_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, asked = helio(monkeypatch, STATUS, "repair-status")
    assert asked == [("repair_status",)]
    for text in ("paused", "100 entries, 3.00 MiB", "1.50 MiB/s", "about 3 s", "bookie-1", "ledger 4711, 3 left"):
        assert text in shown.output
    assert re.search(r"ledgers that wait for a bookie to take copies\W+3\b", shown.output)
    as_json, _ = helio(monkeypatch, STATUS, "repair-status", "--json")
    assert json.loads(as_json.stdout)["scrubs"][0]["ledgers_mended"] == 1


def test_a_bookie_that_has_not_started_has_no_scrub() -> None:
    found = scrubs.status_of("bookie-1", {})
    assert "not started" in found.row[1]
    assert len(found.row) == len(scrubs.COLUMNS) == len(scrubs.status_of("bookie-1", SCRUBBED).row)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("pause", "--repair"), ("pause", True, None)),
        (("pause", "--scrubs"), ("pause", None, True)),
        (("resume", "--repair", "--scrubs"), ("pause", False, False)),
    ],
)
def test_repair_and_scrubs_are_paused(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], asked: tuple[Any, ...]
) -> None:
    shown, calls = helio(monkeypatch, None, *arguments)
    assert shown.exit_code == 0, shown.output
    assert calls == [asked]


def test_a_pause_says_of_what(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, calls = helio(monkeypatch, None, "pause")
    assert isinstance(shown.exception, BadRequestError)
    assert calls == []


def test_a_machine_that_joined_before_the_cluster_served_asks_the_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It noted no addresses, and would join Ray at each command if it did not read them now."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ClusterHome(tmp_path).save(ClusterState("mine", "10.0.0.1:6379", "", node_address="10.0.0.2"))
    told = view.ClusterCard("mine", "0.1.0", "node", True, "etcd://10.0.0.1:2379/h", "", "http://10.0.0.1:8080")
    cards = [None, told]
    monkeypatch.setattr(view, "OutsideView", lambda _: SimpleNamespace(card=lambda _: cards.pop(0)))
    target = Target("mine", tmp_path)
    assert target.gateway() is None, "the cluster does not serve yet"
    for _ in range(2):  # they are noted then
        gateway = target.gateway()
        assert gateway is not None
        assert gateway.url == "http://10.0.0.1:8080"


def test_calls_of_parts_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class Call:
        def __init__(self, outcome: Any) -> None:
            self._outcome = outcome

        def future(self) -> Future[Any]:
            future: Future[Any] = Future()
            if isinstance(self._outcome, Exception):
                future.set_exception(self._outcome)
            else:
                future.set_result(self._outcome)
            return future

    died = ray.exceptions.ActorDiedError()
    calls = {"a": Call(7), "b": Call(died), "c": Call(None), "late": Call(9)}
    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs[:3], refs[3:]))
    found, failed = answers_of(calls, 2.0)
    assert found == {"a": 7, "c": None}
    assert failed["b"] is died
    assert reason(failed["late"]) == "no answer in 2 s"
    assert answers_of({}, 2.0) == ({}, {})
