"""A bookie that goes to another machine with all that it stores, and comes back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import heliograph
from tests.machines.network import Machine
from tests.machines.scenarios.scale import check_gone, newcomer, remove_spare, scaled
from tests.machines.scenarios.stage import Stage

MESSAGES = 200


def bookie_moved(stage: Stage) -> None:
    """`helio bookies move` takes a bookie to a machine that joined, and back, while clients go on."""
    number = stage.chance.randrange(1, len(stage.cluster.machines))
    name, own, spare = f"bookie-{number + 1}", stage.cluster.machines[number], stage.cluster.spare
    topic = f"moved-{stage.chance.randrange(1 << 32)}"
    sent = [b"%d" % each for each in range(MESSAGES)]
    with scaled(stage, 1):
        stage.cluster.join_spare()
    other = newcomer(stage)
    with stage.load() as load:
        with heliograph.connect(stage.cluster.service_url) as client, client.producer(topic) as producer:
            for value in sent:
                producer.send(value)
        _move(stage, name, spare, stage.cluster.directory / "moved")
        load.wait_for_more()
        stage.settle(also=other)
        _move(stage, name, own, stage.cluster.data)
        shutil.rmtree(stage.cluster.directory / "moved")
        load.wait_for_more()
        stage.settle(also=other)
        with scaled(stage, 0):
            pass
        check_gone(stage, other)
        stage.settle()
    with heliograph.connect(stage.cluster.service_url) as client, client.reader(topic, "earliest") as reader:
        assert [reader.receive(60).value for _ in sent] == sent
    remove_spare(stage)


def _move(stage: Stage, name: str, machine: Machine, to: Path) -> None:
    """Move a bookie, check that it serves there, and remove what it left behind."""
    command = ("bookies", "move", name, "--node", machine.address, "--to", str(to), "--json")
    found = json.loads(stage.cluster.helio(*command))
    assert found["serving"], found
    assert found["bytes"] > 0, found
    addresses = {actor["name"]: actor["address"] for actor in stage.cluster.status()["actors"]}
    assert addresses[name].rpartition(":")[0] == machine.address
    assert machine.pids("part::bookie-"), "its process is there"
    for old in found["old_directories"]:
        shutil.rmtree(old)
    stage.say(f"{name} serves on {machine.address}, with {found['files']} files, {found['bytes']} bytes")
