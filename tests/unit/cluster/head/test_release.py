"""What is known of Ray's releases, without a Ray that runs."""

from __future__ import annotations

import importlib.util
import inspect
import tomllib
from pathlib import Path

import pytest
import ray

from heliograph.base.errors import UnsupportedError
from heliograph.client import discovery, ray_release
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head.release import check_ray, guarded
from heliograph.cluster.lifecycle import up
from heliograph.ray import gcs, process
from tests.rules.source import ROOT, files_below


def test_the_packaging_names_the_oldest_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [wanted] = [each for each in project["optional-dependencies"]["cluster"] if each.startswith("ray[")]
    assert wanted == f"ray[default]>={ray_release.OLDEST},<3"


@pytest.mark.parametrize("version", ["1.13.0", "2.9.3", "2.48.0", "2.3.0rc1"])
def test_an_older_release_is_refused_before_anything_is_started(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray, "__version__", version)
    for start in (lambda: up(ClusterConfig(home=tmp_path / "home")), discovery.attach):
        with pytest.raises(UnsupportedError, match=rf"Ray {version} is too old: install ray>={ray_release.OLDEST}"):
            start()
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("version", [f"{ray_release.OLDEST}.0", "2.59.0", "2.60.0", "2.60.3", "3.0.0.dev0", "unknown"])
def test_others_start_and_newer_ones_than_tested_are_told(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", version)
    told: list[str] = []
    check_ray(told.append)
    assert told == (
        [f"Ray {version} is newer than 2.60, the newest that this version of Heliograph was tested with"]
        if version.startswith("3")
        else []
    )


def test_a_ray_that_cannot_ask_for_a_token_stays_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    open_config = ClusterConfig(host="0.0.0.0", auth={"enabled": True})
    monkeypatch.setattr(ray, "__version__", "2.51.2")
    assert guarded(ClusterConfig()).ray_on_loopback
    with pytest.raises(UnsupportedError, match=r"install ray>=2\.52"):
        guarded(open_config)
    assert guarded(open_config.model_copy(update={"insecure": True})).host == "0.0.0.0"
    monkeypatch.setattr(ray, "__version__", "2.52.0")
    for config in (ClusterConfig(), open_config):
        assert guarded(config) is config


def test_what_of_ray_is_not_public_is_there() -> None:
    """This asks the installed release; the clusters of ``make compat`` use the same of others."""
    ray_release.require_supported(ray_release.ray_version())
    for file in files_below("heliograph/ray", ".py"):
        for name in file.imports():
            module, _, attribute = name.rpartition(".")
            is_attribute = bool(module) and hasattr(importlib.import_module(module), attribute)
            assert is_attribute or importlib.util.find_spec(name) is not None, name
    worker = importlib.import_module("ray._private.worker")
    assert '"_node_ip_address"' in inspect.getsource(inspect.unwrap(worker.init))  # one of its ``kwargs``
    for name in ("_internal_kv_list", "_internal_kv_get", "_internal_kv_put", "_internal_kv_del"):
        assert callable(getattr(gcs._store(), name))
    assert importlib.util.find_spec(process.PROGRAM[1]) is not None
    assert ray_release.dashboard_url() == ""
    assert not ray_release.is_ray_client()
