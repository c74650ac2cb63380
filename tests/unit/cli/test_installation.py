"""`helio version` and `helio dashboard`."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heliograph.base.errors import ClusterNotFoundError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.app import app


def helio(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    state = ClusterState("n", "127.0.0.1:1", "token", dashboard_url="http://127.0.0.1:8265")
    ClusterHome(tmp_path).save(state)
    return tmp_path


def test_versions_are_shown() -> None:
    found = json.loads(helio("version", "--json"))
    assert found["python"] == platform.python_version()
    assert {"heliograph", "ray"} <= found.keys()
    assert platform.python_version() in helio("version")


def test_the_dashboard_is_named_with_its_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret-1")
    assert json.loads(helio("dashboard", "--home", str(home), "--json")) == {
        "url": "http://127.0.0.1:8265",
        "token": "secret-1",
    }
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    file = home / "token"
    file.write_text("secret-2\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    assert "secret-2" in helio("dashboard", "--home", str(home))


def test_without_a_cluster_there_is_no_dashboard(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotFoundError, match="helio up"):
        helio("dashboard", "--home", str(tmp_path))
