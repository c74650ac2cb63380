"""Processes are ended by name, and a recycled pid is left alone. Real processes, no Ray."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heliograph.base.errors import ConflictError, ResourceError
from heliograph.base.home import ClusterHome, ClusterState, require_writable
from heliograph.base.processes import ProcessName, end_session, session_members, wait_until
from heliograph.base.system.processes import boot_id
from heliograph.client import discovery
from heliograph.cluster import lifecycle, ports
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch

pytestmark = pytest.mark.slow

# A leader with a child in a process group of its own that ignores SIGTERM, as Ray's workers may.
LEADER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_whole_session_ends_and_nothing_else() -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    child = ProcessName.of(int(leader.stdout.readline()))
    name = ProcessName.of(leader.pid)
    assert name is not None
    assert child is not None
    assert {name, child} == set(session_members(name))
    assert end_session(name)
    assert not child.is_alive()
    assert leader.wait() < 0
    leader.stdout.close()
    assert session_members(name) == []


def test_the_rest_of_a_session_is_found_after_its_leader_died() -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    child = ProcessName.of(int(leader.stdout.readline()))
    name = ProcessName.of(leader.pid)
    assert name is not None
    assert child is not None
    leader.kill()
    leader.wait()
    leader.stdout.close()
    assert session_members(name) == [child]
    assert end_session(name)
    assert not child.is_alive()


def test_a_recycled_pid_is_left_alone() -> None:
    own = ProcessName.of(os.getpid())
    assert own is not None
    assert own.is_alive()
    stranger = ProcessName(own.pid, own.start_ticks - 1)
    assert not stranger.is_alive()
    assert session_members(stranger) == []
    assert end_session(stranger)
    assert ProcessName.of(2**22 + 1) is None


def test_waiting_ends_with_the_condition_or_the_time() -> None:
    assert wait_until(lambda: True, 0)
    begun = time.monotonic()
    assert not wait_until(lambda: False, 0.1)
    assert time.monotonic() - begun >= 0.1


def test_a_taken_port_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
        with pytest.raises(ResourceError, match="--gateway-port") as caught:
            ports.require_free(port, "127.0.0.1", "gateway_port")
    assert caught.value.field == "gateway_port"
    assert ports.is_free(port)
    ports.require_free(0, "127.0.0.1", "gateway_port")
    assert ports.is_free(ports.pick_free())


def test_an_address_of_another_machine_has_no_free_ports() -> None:
    with pytest.raises(ResourceError, match=r"no free port .* on 203\.0\.113\.9"):
        ports.pick_free("203.0.113.9")


STATE = ClusterState("n", "1.2.3.4:5", "token", ray_pid=7, ray_start_ticks=9, boot_id="another boot")


def test_state_is_kept_and_forgotten(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "home")
    assert home.load() is None
    home.prepare()
    home.save(STATE)
    assert home.load() == STATE
    home.forget()
    assert home.load() is None


def test_pids_mean_nothing_after_a_reboot() -> None:
    assert STATE.ray_process is None
    now = ClusterState("n", "1.2.3.4:5", "token", ray_pid=7, ray_start_ticks=9, boot_id=boot_id())
    assert now.ray_process == ProcessName(7, 9)


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1, "who": 2}', '{"version": 99}'])
def test_state_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ResourceError, match=r"cluster\.json"):
        ClusterHome(tmp_path).load()


def test_one_start_or_stop_at_a_time(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    with home.locked(), pytest.raises(ConflictError, match="wait"), ClusterHome(tmp_path).locked():
        pass
    with home.locked():
        pass


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="--data-directory") as caught:
        require_writable(tmp_path / "file" / "below", "data_directory")
    assert caught.value.field == "data_directory"
    require_writable(tmp_path / "new" / "deep", "data_directory")


@pytest.mark.parametrize("program", ["print('no memory'); raise SystemExit(1)", "print('no memory')"])
def test_a_ray_that_does_not_start_is_cleared_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str
) -> None:
    temporary: list[Path] = []

    def command(config: ClusterConfig, directory: Path, dashboard_port: int, port: int) -> list[str]:
        temporary.append(directory)
        return [sys.executable, "-c", program]

    monkeypatch.setattr(launch, "_command", command)
    monkeypatch.setattr(launch, "_make_token", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(discovery, "is_attached", lambda: False)
    config = ClusterConfig(home=tmp_path / "home", broker_port=0, gateway_port=0, dashboard_port=0)
    with pytest.raises(ResourceError, match=r"Ray did not start: no memory \(log: "):
        lifecycle.up(config)
    assert ClusterHome(config.home_directory).load() is None
    assert not temporary[0].exists()


def test_a_ray_that_takes_too_long_is_said_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    home.prepare()
    home.ray_log.write_text("Local node IP")
    monkeypatch.setattr(launch, "START_TIMEOUT_SECONDS", 0.0)
    me = ProcessName.of(os.getpid())
    assert me is not None
    with pytest.raises(ResourceError, match=r"not ready in 0 s.*Local node IP \(log: "):
        launch.wait_for_ray(launch.RayHead(me, "", "", tmp_path, "token"), home)


def test_the_brokers_address_does_not_depend_on_who_was_ready_first() -> None:
    ready_last = {"broker-2": "pulsar://h:2", "gateway": "http://h:8", "broker-1": "pulsar://h:1"}
    assert lifecycle._joined_urls(ready_last) == "pulsar://h:1,h:2"
