"""The process of an actor loads the code of its own part, not that of every part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

from heliograph.base.addressing.part_handle import MARK, SHARED_MARK
from heliograph.cluster import deployment
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.keeping.keeper import kept
from heliograph.cluster.operator.actor import OperatorActor
from heliograph.cluster.parts import Part
from heliograph.cluster.shared_process import SharedProcess
from tests.previous_release import unpack_previous

pytestmark = pytest.mark.slow

# What an actor's worker does with the class that it is sent, and which modules are there then.
LOAD = """
import importlib, json, sys
from ray import cloudpickle
cloudpickle.loads(sys.stdin.buffer.read())
for module in sys.argv[1:]:
    importlib.import_module(module)
print(json.dumps(list(sys.modules)))
"""
OWNERS = {
    "heliograph.cluster.deployment": "",
    "heliograph.gateway.app": "gateway",
    "heliograph.actors.broker.broker": "broker",
    "heliograph.actors.bookie.bookie": "bookie",
    "heliograph.actors.auditor.auditor": "auditor",
}
KINDS = ("metadata", "bookie", "broker", "auditor", "gateway", "operator")
# Libraries of megabytes, and the parts that use them. The operator makes parts of every kind, so it has their classes.
HEAVY = {
    "fastapi": {"gateway", "operator"},
    "uvicorn": {"gateway", "operator"},
    "websockets": {"gateway", "operator"},
    "rocksdict": {"metadata", "bookie", "operator"},
    "grpc": set[str](),
    "pyarrow": set[str](),
    "pandas": set[str](),
}


def _loaded(kind: str, tmp_path: Path) -> set[str]:
    """Return the modules of a process of a part, before it joins Ray."""
    config = ClusterConfig(home=tmp_path)
    part = Part("part", kind, directory=tmp_path)
    actor_class, modules = OperatorActor, ["heliograph.cluster.deployment"]
    if kind != "operator":
        actor_class, modules = deployment._class_and_arguments(part, config, "", "")[0], []
    sent = cloudpickle.dumps(deployment._hosted(actor_class, part, config))  # type: ignore[no-untyped-call]
    run = subprocess.run([sys.executable, "-c", LOAD, *modules], input=sent, capture_output=True, check=True)
    return set(json.loads(run.stdout))


@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_loads_the_code_of_its_own_part(kind: str, tmp_path: Path) -> None:
    loaded = _loaded(kind, tmp_path)
    assert "heliograph.cluster.hosting" in loaded
    assert not {name for name, users in HEAVY.items() if kind not in users and name in loaded}
    if kind != "operator":
        assert not {name for name, owner in OWNERS.items() if owner != kind and name in loaded}


def test_parts_are_known_by_their_methods(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path)
    for kind in KINDS:
        part = Part(f"{kind}-1", kind, directory=tmp_path)
        actor_class = OperatorActor
        if kind != "operator":
            actor_class, _ = deployment._class_and_arguments(part, config, "", "")
        made = deployment._hosted(actor_class, part, config)
        assert set(dir(made)) >= MARK
    assert set(dir(SharedProcess)) >= SHARED_MARK


def test_calls_of_parts_leave_nothing_in_the_gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps an event of each call otherwise, 3 kB up to 100,000 calls."""
    asked: dict[str, Any] = {}

    class Made:
        def options(self, **options: Any) -> Made:
            asked.update(options)
            return self

        def remote(self, *_: Any) -> object:
            return object()

    monkeypatch.setattr("heliograph.cluster.deployment.ray.remote", lambda _: Made())
    monkeypatch.setattr("heliograph.cluster.deployment.part_handle.is_stranger", lambda *_: False)
    monkeypatch.setattr("heliograph.cluster.deployment.part_handle.is_part", lambda *_: True)
    deployment._actor(SharedProcess, "shared-process", "", ClusterConfig(home=tmp_path), {}, ())
    assert asked["enable_task_events"] is False


def test_the_previous_release_loads_the_classes_of_all_actors(tmp_path: Path) -> None:
    """It does when it gets their handles, as after a way back; their arguments are checked by what it loads then."""
    old, config = unpack_previous(tmp_path / "old"), ClusterConfig(home=tmp_path)
    for kind in KINDS:
        part = Part(f"{kind}-1", kind, directory=tmp_path)
        actor_class = OperatorActor
        if kind != "operator":
            actor_class, _ = deployment._class_and_arguments(part, config, "", "")
        made: Any = ray.remote(kept(deployment._hosted(actor_class, part, config), part.name, "n"))
        sent = made.__ray_metadata__.modified_class  # with all inherited methods, as Ray sends it
        (tmp_path / kind).write_bytes(cloudpickle.dumps(sent))  # type: ignore[no-untyped-call]
    program = f"""
import inspect
from pathlib import Path
from ray import cloudpickle
found = {{kind: cloudpickle.loads((Path({str(tmp_path)!r}) / kind).read_bytes()) for kind in {KINDS!r}}}
assert all(hasattr(each, method) for each in found.values() for method in {sorted(MARK)!r})
print(inspect.signature(found["broker"].asked), inspect.signature(found["broker"].stop))
"""
    environment = {**os.environ, "PYTHONPATH": str(old)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=old, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.split(") ")[0].startswith("(self, method, arguments"), run.stdout
