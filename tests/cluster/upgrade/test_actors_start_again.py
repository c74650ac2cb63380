"""The actors that one release created, in processes with the code of the other: Ray starts them again from pickles."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.cloudpickle

from heliograph.actors.auditor.actor import AuditorActor
from heliograph.actors.bookie.actor import BookieActor
from heliograph.actors.broker.actor import BrokerActor
from heliograph.base.errors import ConflictError, UnsupportedError
from heliograph.cluster.keeping.keeper import kept
from heliograph.cluster.operator.actor import OperatorActor
from heliograph.gateway.actor import GatewayActor
from heliograph.metadata.backends.embedded.actor import MetadataActor
from tests.previous_release import unpack_previous

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CLASSES = {
    "metadata": MetadataActor,
    "bookie-1": BookieActor,
    "broker-1": BrokerActor,
    "auditor": AuditorActor,
    "gateway": GatewayActor,
    "operator": OperatorActor,
}
END_SECONDS = 120.0
PICKLE = """
import dataclasses, json, sys
from pathlib import Path
import ray, ray.cloudpickle
from heliograph.cluster import deployment
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.labels import Node
from heliograph.cluster.parts import parts_of

folder = Path(sys.argv[1])
config = ClusterConfig(home=folder / "home", brokers=1)
labels = {"heliograph.io/bookie": "true", "heliograph.io/broker": "true"}
parts = parts_of(config, [Node("10.0.0.1", labels)], {})
others = [part for part in parts if part.kind not in ("bookie", "broker", "operator")]

def values(given):
    if dataclasses.is_dataclass(given):
        return {item.name: values(getattr(given, item.name)) for item in dataclasses.fields(given)}
    return repr(given) if not callable(given) else ""

said = {}
for part in parts:
    if part.name in ("bookie-2", "bookie-3"):
        continue
    if part.kind == "operator":
        actor_class = deployment.OperatorActor
        arguments = (deployment._operator_arguments(config, "embedded://a:1", "", others),)
    else:
        actor_class, arguments = deployment._class_and_arguments(part, config, "embedded://a:1", "")
    made = ray.remote(deployment._hosted(actor_class, part, config)).__ray_metadata__.modified_class
    (folder / part.name).write_bytes(ray.cloudpickle.dumps((made, arguments)))
    said[part.name] = [values(each) for each in arguments]
print(json.dumps(said))
"""
LOAD = """
import pickle, sys
from pathlib import Path

for file in sorted(Path(sys.argv[1]).iterdir()):
    print(pickle.loads(file.read_bytes()).__name__)
"""


def of_previous(code: Path, program: str, folder: Path) -> str:
    """Run a program with the code of the previous release, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env={**os.environ, "PYTHONPATH": str(code)}, cwd=folder,
        capture_output=True, text=True, timeout=END_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def require_same(said: Any, given: Any) -> None:
    """Check that all values which the previous release gave are there, under the same names."""
    if not isinstance(said, dict):
        assert not said or said == repr(given)
        return
    for name, value in said.items():
        require_same(value, getattr(given, name))
    for item in dataclasses.fields(given):
        getattr(given, item.name)  # those that it does not have, too


def test_parts_of_the_previous_release_start_with_this_code_and_the_settings_that_they_had(tmp_path: Path) -> None:
    said = json.loads(of_previous(unpack_previous(tmp_path / "code"), PICKLE, tmp_path))
    assert set(said) == set(CLASSES)
    for name, actor_class in CLASSES.items():
        made, arguments = pickle.loads((tmp_path / name).read_bytes())
        assert issubclass(made, actor_class)
        for was, given in zip(said[name], arguments, strict=True):
            require_same(was, given)
            assert pickle.loads(pickle.dumps(given)) == given or name == "operator"
        if name == "operator":
            with pytest.raises(ConflictError, match="cannot make bookie-1: helio restart --rolling"):
                arguments[0].create("bookie-1", None)


def test_a_call_that_only_the_previous_release_has_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"OperatorActor\.scale is a call of release 0\.1\.0"):
        asyncio.run(OperatorActor.scale(None, "bookie", 3))  # type: ignore[attr-defined]


def test_a_process_of_the_previous_release_loads_the_handles_of_this_one(tmp_path: Path) -> None:
    (folder := tmp_path / "classes").mkdir()
    for name, actor_class in CLASSES.items():
        made: Any = ray.remote(kept(actor_class, name, "heliograph"))
        (folder / name).write_bytes(ray.cloudpickle.dumps(made.__ray_metadata__.modified_class))  # type: ignore[no-untyped-call]
    found = of_previous(unpack_previous(tmp_path / "code"), LOAD, folder).split()
    assert found == [CLASSES[name].__name__ for name in sorted(CLASSES)]
