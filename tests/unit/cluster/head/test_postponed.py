"""What a head of Ray starts after its node is ready: the dashboard, and what else no part waits for."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import node as ray_node
from ray._private import services
from ray.scripts import scripts

from heliograph.cluster.head import launch, program

NAMES = ("start_monitor", "start_ray_client_server", "start_api_server", "start_log_monitor")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The steps of a head, in order, with a Ray that only notes what it would start. The parameter: no dashboard."""
    fails = getattr(request, "param", False)
    found: list[str] = []
    state = {"niceness": 0}

    def noting(name: str) -> Any:
        def start(_: Any, **options: Any) -> None:
            if name == "start_api_server" and options["raise_on_failure"]:
                raise RuntimeError("no dashboard")
            found.append(f"{name} {state['niceness']}")

        return start

    class Node:
        pass

    for name in NAMES:
        setattr(Node, name, noting(name))

    def main() -> None:
        node: Any = Node()
        for name in NAMES:
            options = {"include_dashboard": True, "raise_on_failure": fails} if name == "start_api_server" else {}
            getattr(node, name)(**options)
        found.append("ready")
        vars(scripts)["time"].sleep(1)

    monkeypatch.setattr(ray_node, "Node", Node)
    monkeypatch.setattr(scripts, "main", main)
    monkeypatch.setattr(scripts, "time", time)  # which the head replaces
    monkeypatch.setattr(scripts, "get_ray_client_dependency_error", None, raising=False)
    monkeypatch.setattr(services, "start_api_server", services.start_api_server)
    monkeypatch.setattr(sys, "argv", ["-c", "start", "--head", f"--temp-dir={tmp_path}"])
    monkeypatch.setattr(program, "_PARTS_POLL_SECONDS", 0.001)
    monkeypatch.setattr(program, "os", SimpleNamespace(
        path=os.path,
        nice=lambda more: state.update(niceness=state["niceness"] + more),
        execv=lambda *_: found.append("small"),
    ))  # fmt: skip
    return found


def test_the_dashboard_starts_after_the_parts_with_a_lower_priority(steps: list[str], tmp_path: Path) -> None:
    launch.let_the_rest_start(str(tmp_path))
    program.run_head(is_lean=False)
    assert steps == [
        "ready",
        "start_ray_client_server 0",
        "start_log_monitor 0",
        "start_monitor 10",
        "start_api_server 10",
        "small",
    ]


@pytest.mark.parametrize("steps", [True], indirect=True)
def test_a_dashboard_that_fails_is_noted_and_the_node_goes_on(
    steps: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "PARTS_WAIT_SECONDS", 0.01)  # the parts never start
    program.run_head(is_lean=False)
    assert steps[0] == "ready"
    assert steps[-1] == "small"
    assert "start_api_server: no dashboard" in capsys.readouterr().err


def test_a_node_that_joins_postpones_nothing(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", "start", "--address=10.0.0.1:6379"])
    program.run_head(is_lean=False)
    assert steps[-2:] == ["ready", "small"]
    assert sorted(steps[:-2]) == sorted(f"{name} 0" for name in NAMES)


def test_some_programs_of_ray_are_started_in_another_way() -> None:
    python, path = sys.executable, "/v/lib/ray/dashboard/dashboard.py"
    own = program._in_our_way([python, path, "--port=1"])
    assert own == [python, "-c", program._OWN.format("run_dashboard"), path, "--port=1"]
    assert program._in_our_way([python, "-u", "/v/ray/_private/log_monitor.py"])[:3] == [python, "-u", "-c"]
    server = [python, "setup_worker.py", "-m", "ray.util.client.server", "--host=::1", "--port=7", "--mode=proxy"]
    assert program._in_our_way(server)[4:] == ["::1", "7", *server]
    for others in ([*server[:-1], "--mode=specific-server"], [python, "-u", "/v/ray/autoscaler/_private/monitor.py"]):
        assert program._in_our_way(others) == others  # such as that of one client
