"""``helio up --watch``: a head that has ended is started again, one that was stopped is not."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.base.errors import ConflictError, ResourceError, UnsupportedError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.processes import ProcessName
from heliograph.base.system.processes import boot_id
from heliograph.cluster import supervision
from heliograph.cluster.config import ClusterConfig

STATE = ClusterState("n", "a:1", "", boot_id=boot_id())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterHome:
    monkeypatch.setattr(supervision, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(supervision, "FIRST_PAUSE_MS", 1)
    made = ClusterHome(tmp_path / "home")
    made.prepare()
    return made


def ended() -> ClusterState:
    with subprocess.Popen(["sleep", "60"]) as child:
        name = ProcessName.of(child.pid)
        child.kill()
    assert name is not None
    return replace(STATE, ray_pid=name.pid, ray_start_ticks=name.start_ticks)


def without_a_raylet() -> ClusterState:
    """A head whose program goes on while all that it started has ended, as after ``ray stop``: this process."""
    name = ProcessName.of(os.getpid())
    assert name is not None
    return replace(STATE, ray_pid=name.pid, ray_start_ticks=name.start_ticks)


def supervised(home: ClusterHome, monkeypatch: pytest.MonkeyPatch, up: Callable[[int], None]) -> int:
    """Supervise until the cluster is stopped; return how often it was started."""
    calls = 0

    def count(config: ClusterConfig, progress: object) -> None:
        nonlocal calls
        calls += 1
        up(calls)

    monkeypatch.setattr(supervision, "up", count)
    supervision.supervise(ClusterConfig(home=home.directory), lambda _: None, threading.Event())
    return calls


@pytest.mark.parametrize("state", [ended, without_a_raylet])
def test_a_head_that_has_ended_is_started_until_it_starts(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch, state: Callable[[], ClusterState]
) -> None:
    home.save(state())

    def up(call: int) -> None:
        home.forget()  # as a start that fails does; and after the last one, the cluster is stopped
        if call < 3:
            raise ResourceError("no")

    assert supervised(home, monkeypatch, up) == 3


def test_a_cluster_that_is_being_stopped_is_not_started(home: ClusterHome, monkeypatch: pytest.MonkeyPatch) -> None:
    home.save(ended())

    def up(call: int) -> None:
        home.forget()
        raise ConflictError("helio down is at it")

    assert supervised(home, monkeypatch, up) == 1


def test_the_ray_of_another_program_is_not_supervised(home: ClusterHome, monkeypatch: pytest.MonkeyPatch) -> None:
    home.save(STATE)
    with pytest.raises(UnsupportedError, match="--watch"):
        supervised(home, monkeypatch, lambda _: None)
