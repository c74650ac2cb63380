"""The start of a head that ends early: it is noted before a signal can end it. Real processes, no Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from heliograph.base.errors import ResourceError
from heliograph.base.home import ClusterHome
from heliograph.base.processes import ProcessName, signals_held
from heliograph.client import discovery
from heliograph.cluster import lifecycle
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch, starting
from heliograph.ray.process import join_ray

pytestmark = pytest.mark.slow

SECONDS = 120
SIGNALLED = """
import json, os, signal, sys, threading
from heliograph.base.processes import ProcessName
from heliograph.cluster.head import launch
when, number = sys.argv.pop(1), int(sys.argv.pop(1))
spawn = launch.spawn
def spawned(command, environment, home):
    process = spawn(command, environment, home)
    if when == "unnoted":
        os.kill(os.getpid(), number)
    return process
def command(config, directory, dashboard_port, port):
    print(json.dumps([str(directory), os.getpid()]), flush=True)
    return [sys.executable, "-c", "import time; time.sleep(600)"]
def stop_ray(*arguments, **options):
    os.kill(os.getpid(), number)  # a second one, while what was started is stopped
    stop(*arguments, **options)
stop, launch.stop_ray = launch.stop_ray, stop_ray
launch.spawn, launch._command, launch._make_token = spawned, command, lambda: None
wait_until = launch.wait_until
def waited(*arguments):
    os.kill(os.getpid(), number)
    return wait_until(*arguments)
launch.wait_until = waited
from heliograph.cli import main
main()
"""
RAYLET = """
import os, pathlib, subprocess, sys
logs = pathlib.Path(sys.argv[1], "r", "session_latest", "logs")
logs.mkdir(parents=True)
lines = ("[2026-01-01 1:2:3,4 I 7 7] begun", "[2026-01-01 1:2:3,4 E 7 7] no memory", "at 0x0")
logs.joinpath("raylet.out").write_text("\\n".join(lines))
raylet = subprocess.Popen([sys.argv[2], "600"])
sys.stdin = open(sys.argv[3])
raylet.kill()
raylet.wait()
import time
time.sleep(600)
"""


@pytest.mark.parametrize(("when", "number"), [("unnoted", signal.SIGTERM), ("waiting", signal.SIGINT)])
def test_a_signal_leaves_nothing_of_a_head_that_starts(tmp_path: Path, when: str, number: int) -> None:
    ports = ("--broker-port", "0", "--gateway-port", "0", "--dashboard-port", "0")
    ran = subprocess.run(
        [sys.executable, "-c", SIGNALLED, when, str(int(number)), "up", "--home", tmp_path / "home", *ports],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))},
    )
    assert (ran.returncode, ran.stderr) == (128 + number, "")
    lines = ran.stdout.splitlines()
    [temporary] = [Path(json.loads(line)[0]) for line in lines if line.startswith("[")]
    assert lines[-1].endswith("stopping the parts that were started")
    assert not temporary.exists()
    assert ClusterHome(tmp_path / "home").load() is None


def test_a_raylet_that_ends_before_ray_can_be_joined_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sleep")
    os.mkfifo(gate := tmp_path / "gate")
    looked = launch.raylet_of

    def found(leader: ProcessName) -> ProcessName | None:
        if process := looked(leader):
            gate.write_text("")  # the program goes on once the raylet was seen
        return process

    def command(config: ClusterConfig, directory: Path, dashboard_port: int, port: int) -> list[str]:
        return [sys.executable, "-c", RAYLET, str(directory), str(raylet), str(gate)]

    monkeypatch.setattr(launch, "raylet_of", found)
    monkeypatch.setattr(launch, "_command", command)
    monkeypatch.setattr(launch, "_make_token", lambda: None)
    monkeypatch.setattr(starting, "RAY_STARTS_MAX", 1)
    monkeypatch.setattr(discovery, "is_attached", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = ClusterConfig(home=tmp_path / "home", broker_port=0, gateway_port=0, dashboard_port=0)
    with pytest.raises(
        ResourceError, match=r"Ray did not start: the last line of its raylet is: \[.*\] no memory \(log"
    ):
        lifecycle.up(config)
    assert ClusterHome(config.home_directory).load() is None


@pytest.mark.parametrize(("why", "starts"), [("no memory", 3), ("Timed out waiting for file /tmp/port", 10)])
def test_a_head_whose_agent_is_late_is_started_more_often(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str, starts: int
) -> None:
    """A raylet that waited in vain for its agent says nothing of the cluster: the machine was busy."""
    made: list[str] = []

    def start(*_: object) -> None:
        made.append(why)
        raise ResourceError(f"Ray did not start: {why}")

    monkeypatch.setattr(starting, "_start_head", start)
    config = ClusterConfig(home=tmp_path / "home", broker_port=0, gateway_port=0, dashboard_port=0)
    with pytest.raises(ResourceError, match=why):
        starting.start_ray(config, ClusterHome(tmp_path / "home"), print)
    assert len(made) == starts


def test_ray_does_not_replace_a_handler_of_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[str] = []

    def of_ray(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: came.append("Ray's"))
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    monkeypatch.setattr("ray.init", of_ray)
    monkeypatch.setattr("ray.shutdown", of_ray)
    monkeypatch.setattr(discovery, "is_attached", lambda: True)
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("ours"))
    try:
        join_ray("127.0.0.1:1", "")
        discovery.detach()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == ["ours", "ours"]


def test_held_signals_come_at_the_end() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("signal"))
    try:
        with signals_held():
            signal.raise_signal(signal.SIGTERM)
            came.append("end of the block")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == ["end of the block", "signal"]
