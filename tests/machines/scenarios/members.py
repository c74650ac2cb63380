"""Machines that carry members of the cluster's own etcd: the leader's is lost or cut off, and a disk is lost."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping

from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.etcd_member.survey import Survey, survey
from tests.machines.network import wait_for
from tests.machines.scenarios.cuts import CUT_SECONDS
from tests.machines.scenarios.stage import SETTLE_SECONDS, Stage

ETCD = "etcd --name="  # in the command line of a member


def leader_lost(stage: Stage) -> None:
    """The machine of etcd's leader is lost and back; what the others carry goes on."""
    victim = _leader(stage)
    with stage.load() as load:
        stage.say(f"machine {victim + 1}, with etcd's leader, is lost")
        stage.cluster.machines[victim].power_off()
        load.wait_for_more()
        if victim:
            stage.settle(without=victim)
    if victim:
        stage.cluster.join(victim)
    else:
        stage.cluster.up()
    _settle(stage)


def leader_cut_off(stage: Stage) -> None:
    """The machine of etcd's leader is cut off from all others, and joined again."""
    victim = _leader(stage)
    machine = stage.cluster.machines[victim]
    with stage.load() as load:
        stage.say(f"machine {victim + 1}, with etcd's leader, is cut off")
        machine.pull_the_cable()
        time.sleep(CUT_SECONDS)
        machine.plug_in()
        load.wait_for_more()
    _settle(stage)


def member_disk_lost(stage: Stage) -> None:
    """The disk of an etcd member is lost; it says so, and is replaced."""
    victim = stage.chance.randrange(len(_survey(stage).members))
    name = f"metadata-{victim + 1}"
    with stage.load() as load:
        stage.say(f"the disk of {name} is lost")
        shutil.rmtree(stage.cluster.data / name)
        stage.cluster.machines[victim].kill(ETCD)
        wait_for(lambda: _says_empty(stage, name), f"{name} refuses its empty disk", SETTLE_SECONDS)
        load.wait_for_more()
        stage.cluster.helio("metadata", "replace", name, "--empty-disk")
    _settle(stage)


def members_killed(stage: Stage) -> None:
    """All members are killed at once and started again; open topics are served meanwhile (I13)."""
    with stage.load() as load:
        stage.say("all members of etcd are killed")
        for machine in stage.cluster.machines:
            machine.kill(ETCD)
        load.wait_for_more()
        begun = time.monotonic()
        wait_for(lambda: _survey(stage).has_quorum, "the members have a leader", SETTLE_SECONDS)
        stage.say(f"the members have a leader again after {time.monotonic() - begun:.1f} s")
        load.wait_for_more()
    _settle(stage)


MEMBER_SCENARIOS: Mapping[str, Callable[[Stage], None]] = {
    scenario.__name__: scenario for scenario in (leader_lost, leader_cut_off, members_killed, member_disk_lost)
}


def _survey(stage: Stage) -> Survey:
    return asyncio.run(survey(EtcdAddress.parse(stage.cluster.metadata_url())))


def _leader(stage: Stage) -> int:
    """Return the number of the machine that carries the leader; a member has the number of its machine."""
    wait_for(lambda: _survey(stage).has_quorum, "the members have a leader", SETTLE_SECONDS)
    return next(number for number, member in enumerate(_survey(stage).members) if member.is_leader)


def _settle(stage: Stage) -> None:
    wait_for(lambda: all(member.is_serving for member in _survey(stage).members), "all members serve", SETTLE_SECONDS)
    stage.settle()


def _says_empty(stage: Stage, name: str) -> bool:
    return any(actor["name"] == name and "is empty" in actor["note"] for actor in stage.cluster.status()["actors"])
