"""The state file of a cluster is read by the release before and the one after."""

from __future__ import annotations

import json
from pathlib import Path

from heliograph.base.home import ClusterHome, ClusterState


def test_only_what_differs_from_the_defaults_is_written(tmp_path: Path) -> None:
    home, state = ClusterHome(tmp_path), ClusterState("n", "10.0.0.1:6379", "", ray_pid=7)
    home.save(state)
    kept = json.loads((tmp_path / "cluster.json").read_text())
    assert kept == {
        "namespace": "n", "ray_address": "10.0.0.1:6379", "ray_auth_mode": "", "ray_pid": 7, "version": 1
    }  # fmt: skip
    assert home.load() == state


def test_what_a_later_release_added_is_left_out(tmp_path: Path) -> None:
    home, state = ClusterHome(tmp_path), ClusterState("n", "10.0.0.1:6379", "token")
    home.save(state)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "added": "x"}))
    assert home.load() == state
