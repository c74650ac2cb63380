"""The environment of a Ray that ``helio up`` starts: how often its processes look around."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch
from heliograph.cluster.head.clocks import EVERY_NODE, LEAN, ONLY_NODE, resting_clocks

NOTICE_OF_ENDS = ("health_check", "death", "heartbeat", "timeout", "disconnect", "liveness")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {**EVERY_NODE, **ONLY_NODE, **LEAN}:
        monkeypatch.delenv(name, raising=False)


def environment(tmp_path: Path, **settings: object) -> dict[str, str]:
    return launch._environment("disabled", ClusterConfig(home=tmp_path, config_file=None, **settings))


def test_no_clock_is_longer_by_which_ray_notices_that_something_ended() -> None:
    names = resting_clocks(is_only_node=True, is_lean=True)
    assert not [name for name in names if any(word in name for word in NOTICE_OF_ENDS)]


@pytest.mark.parametrize("is_lean", [False, True])
def test_the_head_of_one_machine_has_the_longer_periods(tmp_path: Path, is_lean: bool) -> None:
    found = environment(tmp_path, lean=is_lean)
    assert found.items() >= resting_clocks(is_only_node=True, is_lean=is_lean).items()
    assert all((found.get(name) == value) is is_lean for name, value in LEAN.items())
    assert {**EVERY_NODE, **ONLY_NODE}.keys() <= found.keys()


def test_what_other_nodes_wait_for_is_as_ray_has_it(tmp_path: Path) -> None:
    found = environment(tmp_path, host="node", insecure=True)
    assert EVERY_NODE.items() <= found.items()
    assert not ONLY_NODE.keys() & found.keys()


def test_a_variable_of_the_user_goes_before_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    monkeypatch.setenv("RAY_event_stats", "1")
    found = environment(tmp_path, lean=True)
    assert (found["RAY_memory_monitor_refresh_ms"], found["RAY_event_stats"]) == ("100", "1")
    assert found["RAY_kill_idle_workers_interval_ms"] == "1000"
