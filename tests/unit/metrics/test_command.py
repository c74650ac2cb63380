"""`helio metrics`: files for Prometheus and Grafana, and boards beside those of Ray."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heliograph.base.errors import ClusterNotFoundError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.app import app
from heliograph.monitoring.boards import BOARDS

STATE = ClusterState("n", "127.0.0.1:1", "token", gateway_url="https://10.0.0.5:8080", tls_ca_file="/ca.pem")


def helio(home: Path, *arguments: str) -> str:
    return CliRunner().invoke(app, ["metrics", *arguments, "--home", str(home)], catch_exceptions=False).stdout


def test_the_configuration_names_the_gateway_and_what_it_takes_to_get_in(tmp_path: Path) -> None:
    ClusterHome(tmp_path).save(replace(STATE, ray_temporary_directory="/tmp/of-ray"))
    ours, rays = json.loads(helio(tmp_path, "prometheus", "--scrape-token-file", "/t"))["scrape_configs"]
    gateway = {"targets": ["10.0.0.5:8080"], "labels": {"component": "gateway"}}
    assert (ours["scheme"], ours["static_configs"]) == ("https", [gateway])
    assert ours["authorization"] == {"credentials_file": "/t"}
    assert ours["tls_config"] == {"ca_file": "/ca.pem"}
    assert rays["file_sd_configs"] == [{"files": ["/tmp/of-ray/r/prom_metrics_service_discovery.json"]}]


def test_a_cluster_without_ray_has_nothing_of_ray_to_scrape(tmp_path: Path) -> None:
    ClusterHome(tmp_path).save(replace(STATE, gateway_url="http://127.0.0.1:8080", own_pid=1))
    (ours,) = json.loads(helio(tmp_path, "prometheus"))["scrape_configs"]
    assert "tls_config" not in ours
    assert "authorization" not in ours


def test_without_a_gateway_it_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotFoundError, match="--gateway"):
        helio(tmp_path, "prometheus")


def test_install_writes_rules_and_boards_and_gives_boards_to_ray(tmp_path: Path) -> None:
    rays = tmp_path / "ray" / "r" / "session_latest" / "metrics" / "grafana" / "dashboards"
    rays.mkdir(parents=True)
    (rays / "default_grafana_dashboard.json").write_text("of Ray")
    ClusterHome(tmp_path).save(replace(STATE, ray_temporary_directory=str(tmp_path / "ray")))
    target = tmp_path / "out"
    files = json.loads(helio(tmp_path, "install", str(target), "--runbooks", "https://wiki/r", "--json"))["files"]
    assert len(files) == 2 + 2 * len(BOARDS)
    assert all(json.loads(Path(file).read_text()) for file in files)
    assert (target / "prometheus.yml").exists()
    assert '"https://wiki/r#heliographpartdown"' in (target / "heliograph-rules.yml").read_text()
    assert len(list(rays.iterdir())) == 1 + len(BOARDS)
    assert (rays / "default_grafana_dashboard.json").read_text() == "of Ray"
