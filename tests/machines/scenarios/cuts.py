"""Networks that lose packets: some, those of one way, or all; and machines that hear some others only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from tests.machines.forwarder import DELAY_SECONDS, LOST_SHARE
from tests.machines.network import Machine, disturbed
from tests.machines.scenarios.stage import Stage

# Longer than a session of the metadata store, shorter than Ray takes to give a node up.
CUT_SECONDS = 8.0
METADATA = "part::metadata"  # in the title of the process of the embedded store
FROZEN_SECONDS = 60.0 if os.environ.get("FULL") else 15.0  # three sessions or more


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


def broker_cut_from_metadata(stage: Stage) -> None:
    """A broker and the metadata store do not hear each other; another broker takes its topics over meanwhile."""
    metadata, broker = stage.cluster.machines[0], stage.cluster.machines[stage.chance.choice((1, 2))]
    stage.say(f"{broker.address} and the metadata store do not hear each other")
    _cut(stage, _both_ways(metadata, [broker]))


def metadata_frozen(stage: Stage) -> None:
    """The process of the metadata store stands still; open topics are served as if nothing happened (I13)."""
    machine = stage.cluster.machines[0]
    assert machine.pids(METADATA), "the store is an actor of the first machine"
    with stage.load() as load:
        stage.say(f"the metadata store stands still for {FROZEN_SECONDS:.0f} s")
        machine.kill(METADATA, by=signal.SIGSTOP)
        try:
            time.sleep(FROZEN_SECONDS)
            load.wait_for_more()  # also after all sessions might have ended
            stage.note_pause(load.unavailable_seconds(), "while the store stood still")
        finally:
            machine.kill(METADATA, by=signal.SIGCONT)
        stage.settle()


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
