"""Whether a node of Ray that a program started still runs. Real processes, no Ray."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.base.processes import ProcessName, end_session, wait_until
from heliograph.cluster.head import launch

# A program that starts what its first argument names and stays when that has ended, as `ray start --block` does.
STAYS = "import subprocess, sys, time; subprocess.Popen(sys.argv[1]).wait(); time.sleep(60)"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ProcessName]:
    """The leader of a session that has started a program called ``raylet``."""
    raylet = tmp_path / "raylet"
    raylet.write_text(f"#!{sys.executable}\nimport time; time.sleep(60)\n")
    raylet.chmod(0o700)
    with subprocess.Popen([sys.executable, "-c", STAYS, str(raylet)], start_new_session=True) as leader:
        name = ProcessName.of(leader.pid)
        assert name is not None
        yield name
        assert end_session(name)


def test_a_node_runs_until_its_raylet_ends_though_the_program_goes_on(node: ProcessName) -> None:
    assert wait_until(lambda: launch.is_running(node), 30)
    raylet = launch.raylet_of(node)
    assert raylet is not None
    assert raylet != node
    subprocess.run(["kill", str(raylet.pid)], check=True)
    assert wait_until(lambda: not launch.is_running(node), 30)
    assert node.is_alive()
    assert launch.raylet_of(node) is None


def test_no_node_runs_without_a_program() -> None:
    assert not launch.is_running(None)


def test_a_busy_machine_has_time_to_start_what_ray_waits_for_unless_its_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"RAY_worker_register_timeout_seconds": 1, "RAY_agent_register_timeout_ms": 1_000}
    for name, unit in limits.items():
        monkeypatch.delenv(name, raising=False)
        assert int(launch.node_environment("token")[name]) >= 300 * unit
        monkeypatch.setenv(name, "7")
        assert launch.node_environment("token")[name] == "7"
