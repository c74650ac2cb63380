"""Networks that lose packets: some, those of one way, or all; and machines that hear some others only."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tests.machines.forwarder import DELAY_SECONDS, LOST_SHARE
from tests.machines.network import Machine, disturbed
from tests.machines.scenarios.stage import Stage

# Longer than a session of the metadata store, shorter than Ray takes to give a node up.
CUT_SECONDS = 8.0


def cut_off(stage: Stage) -> None:
    """A machine hears no other, and no other hears it."""
    machine = stage.chance.choice(stage.cluster.machines[1:])
    with stage.load():
        stage.say(f"{machine.address} is cut off")
        machine.pull_the_cable()
        time.sleep(CUT_SECONDS)
        machine.plug_in()
        stage.settle()


def cut_one_way(stage: Stage) -> None:
    """A machine hears all others, which do not hear it."""
    machine = stage.chance.choice(stage.cluster.machines[1:])
    stage.say(f"{machine.address} is not heard")
    _cut(stage, [(machine, other) for other in stage.cluster.machines if other is not machine])


def bookie_cut_from_metadata(stage: Stage) -> None:
    """A bookie and the metadata store do not hear each other."""
    metadata, bookie = stage.cluster.machines[0], stage.cluster.machines[3]
    stage.say(f"{bookie.address} and the metadata store do not hear each other")
    _cut(stage, _both_ways(metadata, [bookie]))


def broker_cut_from_bookies(stage: Stage) -> None:
    """A broker hears the metadata store but only the bookies of that machine and of its own."""
    broker = stage.cluster.machines[stage.chance.choice((1, 2))]
    others = [machine for machine in stage.cluster.machines[1:] if machine is not broker]
    stage.say(f"the broker at {broker.address} and the bookies at {', '.join(m.address for m in others)} are apart")
    _cut(stage, _both_ways(broker, others))


def delay_and_loss(stage: Stage) -> None:
    """All machines delay their frames and lose some of them."""
    with stage.load() as load:
        stage.say(f"all machines: {DELAY_SECONDS} s of delay, {LOST_SHARE:.0%} is lost")
        with disturbed(stage.cluster.machines, stage.chance.randrange(1 << 32)):
            time.sleep(CUT_SECONDS)
            load.wait_for_more()
        stage.settle()


def _both_ways(machine: Machine, others: Iterable[Machine]) -> list[tuple[Machine, Machine]]:
    return [way for other in others for way in ((machine, other), (other, machine))]


def _cut(stage: Stage, ways: Iterable[tuple[Machine, Machine]]) -> None:
    ways = list(ways)
    with stage.load():
        for sender, receiver in ways:
            sender.stop_sending_to(receiver)
        time.sleep(CUT_SECONDS)
        for sender, receiver in ways:
            sender.send_again_to(receiver)
        stage.settle()
