"""The program of Ray's head: its options, and whether a node that it started still runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.base.processes import ProcessName, end_session, wait_until
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch
from heliograph.ray.process import PROGRAM

# A program that starts what its first argument names and stays when that has ended, as `ray start --block` does.
STAYS = "import subprocess, sys, time; subprocess.Popen(sys.argv[1]).wait(); time.sleep(60)"


def command(tmp_path: Path, **settings: object) -> list[str]:
    config = ClusterConfig(home=tmp_path, config_file=None, **settings)
    return launch._command(config, tmp_path, dashboard_port=1, port=2)


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


def test_a_head_is_rays_own_program_with_its_options(tmp_path: Path) -> None:
    found = command(tmp_path)
    assert found[:6] == [sys.executable, *PROGRAM, "start", "--head", "--block"]
    assert not any("include" in option for option in found), "a dashboard that does not start would end the head"
    lean = command(tmp_path, lean=True)
    assert {"--include-dashboard=false", "--include-log-monitor=false", "--no-monitor"} <= set(lean)
    for options in (found, lean):  # another Ray of this machine may have Ray's usual ports
        names = {option.partition("=")[0] for option in options}
        assert {"--port", "--ray-client-server-port", "--dashboard-port", "--dashboard-agent-listen-port"} <= names


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
