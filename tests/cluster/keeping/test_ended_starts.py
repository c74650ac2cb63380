"""A `helio up` that ends early, by a signal or because Ray ended, leaves nothing that runs."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.processes import session_members
from heliograph.cluster.head import launch
from tests.cluster.deployment.test_cli import HELIO, environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def started(home: Path, line: str, then: Callable[[int, ClusterState], None]) -> tuple[int, str, ClusterState]:
    """Start a cluster, act once it has printed a line, and return exit code, the text and what was noted before."""
    ports = ("--broker-port", "0", "--gateway-port", "0", "--dashboard-port", "0", "--lean")
    command: list[str | Path] = [HELIO, "up", "--home", home, "--namespace", f"ended-{uuid.uuid4().hex[:8]}", *ports]
    said, noted = "", None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as up:
        assert up.stdout is not None
        for each in up.stdout:
            said += each
            if line in each and noted is None:
                noted = ClusterHome(home).load()
                assert noted is not None
                then(up.pid, noted)
        code = up.wait()
    assert noted is not None, said
    return code, said, noted


def require_nothing_left(home: Path, noted: ClusterState) -> None:
    assert ClusterHome(home).load() is None
    assert ClusterHome(home).secret() is None
    assert noted.ray_process is not None
    assert session_members(noted.ray_process) == []
    assert not Path(noted.ray_temporary_directory).exists()


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("Ray runs at", signal.SIGTERM),
        pytest.param("metadata serves", signal.SIGTERM, marks=pytest.mark.full),
        pytest.param("metadata serves", signal.SIGINT, marks=pytest.mark.full),
    ],
)
def test_a_signal_after_ray_was_joined_leaves_nothing(tmp_path: Path, line: str, number: int) -> None:
    def end(pid: int, _: ClusterState) -> None:
        os.kill(pid, number)
        os.kill(pid, number)

    code, said, noted = started(tmp_path, line, end)
    assert code == {signal.SIGTERM: 143, signal.SIGINT: 130}[signal.Signals(number)], said
    assert said.rstrip().endswith("stopping the parts that were started")
    require_nothing_left(tmp_path, noted)


def test_a_raylet_that_dies_is_told_with_its_last_line(tmp_path: Path) -> None:
    """Ray itself would end the command after a minute, without a word of ours and with everything left behind."""

    def kill(_: int, noted: ClusterState) -> None:
        assert noted.ray_process is not None
        raylet = launch.raylet_of(noted.ray_process)
        assert raylet is not None
        os.kill(raylet.pid, signal.SIGKILL)

    code, said, noted = started(tmp_path, "metadata serves", kill)
    assert code == 1
    assert f"error: Ray at {noted.ray_address} has ended: the last line of its raylet is: [" in said.splitlines()[-1]
    require_nothing_left(tmp_path, noted)
