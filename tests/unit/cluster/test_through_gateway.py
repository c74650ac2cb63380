"""Questions of commands that go by the gateway: `helio logs`, `ledgers describe`. Ray is joined by none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.base.errors import (
    ClusterNotFoundError,
    HeliographError,
    NotFoundError,
    NotPermittedError,
    ServiceNotReadyError,
    UnsupportedError,
)
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.app import app
from heliograph.client import discovery
from heliograph.client.admin.over_http import GatewayCalls
from heliograph.cluster.logs.files import LogPosition, read_log
from heliograph.cluster.logs.gathering import ClusterLogs
from tests.unit.gateway.admin.test_calls import served

LINE = b'{"time": "2026-01-01T00:00:00.00%dZ", "level": "INFO", "part": "bookie-1", "module": "m", "message": "x"}\n'


class Parts:
    """A bookie of another machine with a log, and an auditor."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[str] = []
        self._directory = directory

    async def names(self) -> list[str]:
        return ["auditor", "bookie-1"]

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        self.asked.append(f"{part} {method}")
        if method == "log_chunk":
            after = None if arguments[0] is None else LogPosition(**arguments[0])
            return read_log(self._directory, part, after)
        raise NotFoundError(f"{part} has no {method}", field="method")


async def asked(work: Callable[[GatewayCalls], None], parts: Parts) -> list[str]:
    async with served(parts) as (url, _):
        await asyncio.to_thread(work, GatewayCalls(url, "mine"))
    return parts.asked


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return what joined Ray, which none of these tests has."""
    found: list[str] = []

    def attach(namespace: str, **_: Any) -> None:
        found.append(namespace)
        raise ClusterNotFoundError("no Ray here")

    monkeypatch.setattr(discovery, "attach", attach)
    monkeypatch.setattr(discovery, "is_attached", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path))  # which commands set for their process
    return found


def test_a_ray_that_cannot_be_used_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def attach(namespace: str, **_: Any) -> None:
        raise UnsupportedError("Ray is too old")

    monkeypatch.setattr(discovery, "attach", attach)
    with pytest.raises(UnsupportedError, match="Ray is too old"):
        ClusterLogs(tmp_path / "home", "mine", ["bookie-1"], None)


async def test_logs_of_other_machines_come_by_way_of_the_gateway(tmp_path: Path, joined: list[str]) -> None:
    log = tmp_path / "bookie-1.log"
    log.write_bytes(LINE % 1 + LINE % 2)
    seen: list[list[int]] = []

    def read(gateway: GatewayCalls) -> None:
        logs = ClusterLogs(tmp_path / "home", "mine", ["bookie-1"], gateway)
        first = logs.ends(since_ms=0, level="INFO")
        with log.open("ab") as file:
            file.write(LINE % 3)
        second = logs.further(level="INFO")
        seen.extend([line.time_ms % 10 for line in lines] for lines in (first, second))
        assert not logs.silent

    await asked(read, Parts(tmp_path))
    assert seen == [[1, 2], [3]]
    assert joined == []


@pytest.mark.parametrize(
    ("error", "silent", "refused"),
    [
        (ServiceNotReadyError("bookie-1 starts"), {"bookie-1"}, {}),
        (NotPermittedError("alice needs more", field="role"), set(), {"bookie-1": "alice needs more"}),
    ],
)
async def test_a_part_that_refuses_its_log_is_not_a_silent_one(
    tmp_path: Path, error: HeliographError, silent: set[str], refused: dict[str, str]
) -> None:
    class Refusing(Parts):
        async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
            raise error

    def read(gateway: GatewayCalls) -> None:
        logs = ClusterLogs(tmp_path / "home", "mine", ["bookie-1"], gateway)
        assert logs.ends(since_ms=0, level="INFO") == []
        assert logs.silent == silent
        assert {part: why.partition(":")[0] for part, why in logs.refused.items()} == refused

    await asked(read, Refusing(tmp_path))


async def test_commands_ask_the_auditor_by_way_of_the_gateway(tmp_path: Path, joined: list[str]) -> None:
    def run(gateway: GatewayCalls) -> None:
        ClusterHome(tmp_path).save(ClusterState("mine", "127.0.0.1:1", "", gateway_url=gateway.url))
        command = ["ledgers", "describe", "7", "--home", str(tmp_path), "--namespace", "mine", "--json"]
        shown = CliRunner().invoke(app, command)
        assert isinstance(shown.exception, NotFoundError), shown.output
        assert "has no describe_ledger" in str(shown.exception)

    assert await asked(run, Parts(tmp_path)) == ["auditor describe_ledger"]
    assert joined == []
