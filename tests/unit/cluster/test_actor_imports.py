"""The process of an actor loads the code of its own part, not that of every part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ray import cloudpickle

from heliograph.cluster import deployment
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.parts import Part

# What an actor's worker does with the class that it is sent, and which of our modules are there then.
LOAD = """
import json, sys
from ray import cloudpickle
cloudpickle.loads(sys.stdin.buffer.read())
print(json.dumps([name for name in sys.modules if name.startswith("heliograph.")]))
"""
OWNERS = {
    "heliograph.cluster.deployment": "",
    "heliograph.gateway.app": "gateway",
    "heliograph.actors.broker.broker": "broker",
    "heliograph.actors.bookie.bookie": "bookie",
    "heliograph.actors.auditor.auditor": "auditor",
}


@pytest.mark.parametrize("kind", ["metadata", "broker"])
def test_an_actor_loads_the_code_of_its_own_part(kind: str, tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path)
    part = Part("part", kind, directory=tmp_path)
    actor_class, _ = deployment._class_and_arguments(part, config, "", "")
    sent = cloudpickle.dumps(deployment._hosted(actor_class, part, config))  # type: ignore[no-untyped-call]
    run = subprocess.run([sys.executable, "-c", LOAD], input=sent, capture_output=True, check=True)
    loaded = set(json.loads(run.stdout))
    assert "heliograph.cluster.hosting" in loaded
    assert not {name for name, owner in OWNERS.items() if owner != kind and name in loaded}
