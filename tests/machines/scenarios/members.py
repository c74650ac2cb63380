"""Machines that carry members of the cluster's own etcd: the leader's is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.etcd_member.survey import Survey, survey
from tests.machines.network import wait_for
from tests.machines.scenarios.stage import SETTLE_SECONDS, Stage


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


MEMBER_SCENARIOS: Mapping[str, Callable[[Stage], None]] = {scenario.__name__: scenario for scenario in (leader_lost,)}


def _survey(stage: Stage) -> Survey:
    return asyncio.run(survey(EtcdAddress.parse(stage.cluster.metadata_url())))


def _leader(stage: Stage) -> int:
    """Return the number of the machine that carries the leader; a member has the number of its machine."""
    wait_for(lambda: _survey(stage).has_quorum, "the members have a leader", SETTLE_SECONDS)
    return next(number for number, member in enumerate(_survey(stage).members) if member.is_leader)


def _settle(stage: Stage) -> None:
    wait_for(lambda: all(member.is_serving for member in _survey(stage).members), "all members serve", SETTLE_SECONDS)
    stage.settle()
