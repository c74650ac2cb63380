"""Machines that lose their power: one for good, the head, all of them."""

from __future__ import annotations

from tests.machines.network import wait_for
from tests.machines.scenarios.stage import SETTLE_SECONDS, Stage

GCS = "gcs_server"


def machine_lost(stage: Stage) -> None:
    """A machine is lost, and its copies are made again on the others; then it is back."""
    victim = stage.chance.randrange(1, len(stage.cluster.machines))
    with stage.load() as load:
        stage.say(f"machine {victim + 1} is lost")
        stage.cluster.machines[victim].power_off()
        load.wait_for_more()
        stage.settle(without=victim)
    stage.cluster.join(victim)
    stage.settle()


def head_lost(stage: Stage) -> None:
    """The machine of Ray's head and of the metadata store is lost and back; what runs on others goes on."""
    before = _processes(stage)
    with stage.load() as load:
        stage.say("the head is lost")
        stage.cluster.machines[0].power_off()
        stage.cluster.up()
        load.wait_for_more()
        stage.settle()
    assert _processes(stage) == before, "the bookies of other machines went on"


def head_killed(stage: Stage) -> None:
    """The process that keeps Ray's state is killed, and so the head ends, which ``helio up --watch`` starts again."""
    before, head = _processes(stage), stage.cluster.machines[0]
    with stage.cluster.watched(), stage.load() as load:
        stage.say("the GCS of the head is killed")
        killed = head.pids(GCS)
        head.kill(GCS)
        wait_for(lambda: bool(set(head.pids(GCS)) - set(killed)), "the head is started again", SETTLE_SECONDS)
        load.wait_for_more()
        stage.settle()
    assert _processes(stage) == before, "the bookies of other machines went on"


def reboot(stage: Stage) -> None:
    """All machines lose their power at once, and start again."""
    with stage.load() as load:
        stage.say("all machines are rebooted")
        for machine in stage.cluster.machines:
            machine.power_off()
        stage.cluster.start()
        load.wait_for_more()
        stage.settle()


def _processes(stage: Stage) -> list[list[int]]:
    return [machine.pids("part::bookie-") for machine in stage.cluster.machines[1:]]
