"""Programs outside the cluster get the report from its gateway or from its metadata store, and never join Ray."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heliograph.base.clock import wall_ms
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.app import app
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.report.asking import ask_report
from heliograph.report.record import save_report
from tests.unit.gateway.admin.test_calls import served

pytestmark = pytest.mark.slow

NOWHERE = "embedded://127.0.0.1:1"


@pytest.fixture
def store_url() -> str:
    """The URL of a store with a report of one bookie."""
    name = uuid.uuid4().hex

    async def fill() -> None:
        store = MemoryServer.named(name).open_session(60_000)
        await initialise(store)
        parts = (PartReport("bookie-1", "bookie", "ALIVE", note="its disk is dead", address="h:1"),)
        await save_report(store, ClusterReport("operator on a", wall_ms(), parts=parts, underreplicated_ledgers=2))

    asyncio.run(fill())
    return f"memory://{name}"


async def test_a_machine_without_the_secret_asks_the_gateway() -> None:
    async with served() as (url, _):
        state = ClusterState("mine", "ray", "", metadata_url=NOWHERE, gateway_url=url)
        found = await asyncio.to_thread(ask_report, state, None)
        of_another = await asyncio.to_thread(ask_report, replace(state, namespace="other"), None)
    assert [part.name for part in found.parts] == ["broker-1", "bookie-1"]
    assert of_another.is_silent, "the gateway of another cluster tells nothing"
    assert not of_another.parts


def test_without_a_gateway_the_store_is_read(store_url: str) -> None:
    state = ClusterState("n", "ray", "", metadata_url=store_url)
    assert ask_report(state, None).parts[0].note == "its disk is dead"
    away = ask_report(replace(state, gateway_url="http://127.0.0.1:1"), None)
    assert away.parts[0].note == "its disk is dead"


def test_where_nothing_answers_the_reasons_are_the_report() -> None:
    found = ask_report(ClusterState("n", "ray", "", metadata_url=NOWHERE, gateway_url="http://127.0.0.1:1"), None)
    assert found.is_silent
    gateway, store = found.notes
    assert gateway.startswith("the gateway at http://127.0.0.1:1 does not answer: ")
    assert store.startswith(f"the metadata store at {NOWHERE} ")


def test_status_shows_the_record_and_fails_while_something_is_wrong(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path))  # which the command sets for its process
    ClusterHome(tmp_path).prepare()
    ClusterHome(tmp_path).save(ClusterState("n", "127.0.0.1:1", "", metadata_url=store_url))
    shown = CliRunner().invoke(app, ["status", "--home", str(tmp_path)])
    assert shown.exit_code == 1
    for words in ("bookie-1", "its disk is dead", "by operator on a", "not healthy"):
        assert words in shown.output


def test_a_machine_whose_head_is_away_is_not_told_to_start_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path))
    ClusterHome(tmp_path).prepare()
    away = ClusterState("n", "127.0.0.1:1", "", metadata_url="unknown://127.0.0.1:1", node_address="10.0.0.2")
    ClusterHome(tmp_path).save(away)
    shown = CliRunner().invoke(app, ["status", "--home", str(tmp_path)])
    assert shown.exit_code != 0
    assert "the head of the cluster that this machine joined as 10.0.0.2" in str(shown.exception)
    assert "helio up" not in str(shown.exception)


def test_a_report_is_read_without_loading_ray() -> None:
    program = "import sys, heliograph.report.asking; print('ray' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout == "False\n"
