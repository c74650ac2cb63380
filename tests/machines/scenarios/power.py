"""Machines that lose their power: one or two for good, the head, all of them."""

from __future__ import annotations

import json
from contextlib import suppress

from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.base.errors import HeliographError
from tests.machines import disks
from tests.machines.cluster import BROKER_MACHINES
from tests.machines.network import wait_for
from tests.machines.scenarios.stage import SETTLE_SECONDS, Stage

GCS = "gcs_server"
FIRST_LOST = 3  # number of a machine without a broker
LEDGER_ENTRIES_MAX = 100  # so that ledgers follow each other
VACANT_LEDGERS = 20


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


def second_machine_lost(stage: Stage) -> None:
    """Two bookies are left for three copies: everything goes on until the second machine is replaced. Both are back."""
    victim = stage.chance.choice(BROKER_MACHINES)
    name, machine = f"bookie-{victim + 1}", stage.cluster.machines[victim]
    stage.cluster.helio("namespaces", "policies", "set", "public/default", f"ledger_entries_max={LEDGER_ENTRIES_MAX}")
    with stage.load() as load:
        stage.say(f"machine {FIRST_LOST + 1} is lost")
        stage.cluster.machines[FIRST_LOST].power_off()
        stage.settle(without=FIRST_LOST)
        stage.say(f"machine {victim + 1} is lost, with its disk: two bookies are left")
        machine.power_off()
        disks.wipe(stage.cluster.data / name)
        wait_for(lambda: _vacant_ledgers(stage) >= VACANT_LEDGERS, "ledgers with two copies are made", SETTLE_SECONDS)
        load.wait_for_more()
        stage.note_pause(load.unavailable_seconds(), "at most so far")
        _kill_owner(stage, load.streams[0].topic)
        load.wait_for_more()
        load.use_something_new(f"new-{stage.chance.randrange(1 << 32)}")
        notes = stage.cluster.status()["publishing_notes"]
        expected = {f"bookie-{number + 1} is down" for number in (FIRST_LOST, victim)}
        assert [note.partition(": ")[0] for note in notes] == ["publishing goes on with 2 of 3 copies"], notes
        assert set(notes[0].partition(": ")[2].split(", ")) == expected, notes
        stage.say(f"{name} is replaced")
        stage.cluster.join(victim)
        stage.cluster.helio("bookies", "replace", name, "--empty-disk")
        stage.settle(without=FIRST_LOST)
        load.wait_for_more()
    stage.cluster.join(FIRST_LOST)
    stage.settle()
    stage.cluster.helio("namespaces", "policies", "remove", "public/default", "ledger_entries_max")


def _vacant_ledgers(stage: Stage) -> int:
    """Return how many ledgers lack a bookie; 0 if the metadata store does not answer."""
    with suppress(HeliographError):
        return sum(any(map(is_vacancy, ledger.last_segment.bookies)) for ledger in stage.ledgers())
    return 0


def _kill_owner(stage: Stage, topic: str) -> None:
    """Kill the process of the broker that owns a topic."""
    owner = json.loads(stage.cluster.helio("topics", "lookup", topic, "--json"))["actor_name"]
    stage.say(f"{owner} is killed")
    killed = [machine for machine in stage.cluster.machines if machine.pids(f"part::{owner}")]
    assert killed, "it runs"
    for machine in killed:
        machine.kill(f"part::{owner}")


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
