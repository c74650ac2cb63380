"""`helio restart --rolling` tells both versions of each part, and is refused while nodes have different ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.base import version
from heliograph.cli.app import app
from heliograph.cli.options import Target
from heliograph.cluster import lifecycle, wishing
from heliograph.cluster.doctor import versions
from heliograph.cluster.operator import calls
from heliograph.metadata.operator_records import Wish, WishKind, WishState


class Cluster:
    """A cluster of two parts that have the installed version after a restart."""

    def __init__(self) -> None:
        self.installed = {"10.0.0.1": "0.2.0", "10.0.0.2": "0.2.0"}
        self.versions = {"bookie-1": "0.1.0", "broker-1": "0.2.0"}
        self.failure = ""
        self.left: list[str] = []
        self.restarts: list[dict[str, str]] = []
        self.ups = 0

    def ask(self, namespace: str, method: str) -> Any:
        assert method == "progress", "an operator of the release before has this method, too"
        return {"restart_left": self.left}

    def wished(self, kind: WishKind, subject: str, arguments: dict[str, str], *_: Any, **__: Any) -> Wish:
        self.restarts.append(arguments)
        if not self.failure:
            self.versions = dict.fromkeys(self.versions, "0.2.0")
        return Wish(kind, subject, arguments, 1, WishState.DONE, self.failure, {"failure": self.failure})

    def facts(self, namespace: str) -> dict[str, Any]:
        return {name: {"version": has, "node_address": "10.0.0.1"} for name, has in self.versions.items()}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(version, "VERSION", "0.2.0")
    monkeypatch.setattr(Target, "attach", lambda self: None)
    monkeypatch.setattr(calls, "ask_operator", made.ask)
    monkeypatch.setattr(versions, "ask_parts", made.facts)
    monkeypatch.setattr(versions, "installed_versions", lambda addresses: made.installed)
    monkeypatch.setattr(wishing, "wished", made.wished)
    monkeypatch.setattr(lifecycle, "up", lambda config, progress: setattr(made, "ups", made.ups + 1))
    return made


def restart(home: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["restart", "--rolling", "--home", str(home), *options])


def test_each_part_is_shown_with_both_versions(cluster: Cluster, tmp_path: Path) -> None:
    shown = restart(tmp_path)
    assert shown.exit_code == 0
    assert "bookie-1: 0.1.0 -> 0.2.0" in shown.output
    assert "broker-1: 0.2.0 -> 0.2.0" in shown.output
    found = json.loads(restart(tmp_path, "--json").output)
    assert found["versions"]["bookie-1"] == {"from": "0.2.0", "to": "0.2.0"}


def test_one_that_stopped_shows_what_there_is_and_fails(cluster: Cluster, tmp_path: Path) -> None:
    cluster.failure = "bookie-1 does not serve"
    shown = restart(tmp_path)
    assert shown.exit_code == 1
    assert "bookie-1: 0.1.0 -> 0.1.0" in shown.output
    assert "bookie-1 does not serve" in shown.output


def test_it_is_refused_while_a_node_has_another_version(cluster: Cluster, tmp_path: Path) -> None:
    cluster.installed["10.0.0.2"] = "0.1.0"
    shown = restart(tmp_path)
    assert shown.exit_code != 0
    assert "VersionMismatchError" in type(shown.exception).__name__
    assert "10.0.0.2 has 0.1.0" in str(shown.exception)
    assert cluster.restarts == []


def test_one_that_is_under_way_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    cluster.left = ["broker-1"]
    assert restart(tmp_path, "broker-1").exit_code == 0
    assert (cluster.restarts, cluster.ups) == ([{"names": "broker-1"}], 0)
    cluster.left = []
    assert restart(tmp_path).exit_code == 0
    assert (cluster.restarts[1], cluster.ups) == ({}, 1)
