"""Bookies that come with another machine, and leave again, while clients go on."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import heliograph
from heliograph.base.errors import HeliographError
from heliograph.client.discovery import BOOKIE_PREFIX
from heliograph.cluster.operator.storage import load_roster
from heliograph.metadata.operator_records import Roster
from heliograph.metadata.recipes.occupancy import registered
from tests.machines.network import wait_for
from tests.machines.scenarios.stage import SETTLE_SECONDS, Stage

OPERATOR, REPLICATOR, RAYLET = "part::operator", "part::replicator-", "/raylet/raylet "


def scale_out(stage: Stage) -> None:
    """Another bookie is asked for, and a machine joins: the operator gives it the bookie, which new ledgers use."""
    with stage.load():
        with scaled(stage, 1):
            stage.cluster.join_spare()
        name = newcomer(stage)
        _use(stage, name)
        stage.settle(also=name)
        _check_replicators(stage)
        with scaled(stage, 0):
            pass
        check_gone(stage, name)
        stage.settle()
    remove_spare(stage)


def scale_in(stage: Stage) -> None:
    """A bookie is one too many, or its node is drained: it is emptied before it goes."""
    with scaled(stage, 1):
        stage.cluster.join_spare()
    name = newcomer(stage)
    with stage.load() as load:
        _use(stage, name)
        if stage.chance.random() < 0.5:
            stage.say(f"{name} is one too many")
            with scaled(stage, 0):
                check_gone(stage, name)
        else:
            stage.say(f"the node of {name} is drained")
            stage.cluster.drain_spare()
            check_gone(stage, name)
        load.wait_for_more()
        stage.settle()
    remove_spare(stage)


def operator_killed(stage: Stage) -> None:
    """The operator is killed again and again while a bookie comes and goes; it is started again and goes on."""
    with stage.load():
        with scaled(stage, 1):
            wait_for(
                lambda: _roster(stage).wanted_bookies == _bookies(stage) + 1,
                "the operator has the order",
                SETTLE_SECONDS,
            )
            _kill_operator(stage)
            stage.cluster.join_spare()
            _kill_operator(stage)
        name = newcomer(stage)
        _use(stage, name)
        stage.settle(also=name)
        with scaled(stage, 0):
            wait_for(
                lambda: _roster(stage).wanted_bookies == _bookies(stage), "the operator has the order", SETTLE_SECONDS
            )
            _kill_operator(stage)
            check_gone(stage, name)
        stage.settle()
    remove_spare(stage)


def _bookies(stage: Stage) -> int:
    return len(stage.cluster.machines)


@contextmanager
def scaled(stage: Stage, more: int) -> Iterator[None]:
    """Have ``helio scale`` run for the length of the block, and see it succeed."""
    count = str(_bookies(stage) + more)
    stage.say(f"helio scale bookies {count}")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stage.cluster.helio, "scale", "bookies", count, f"--wait={SETTLE_SECONDS:.0f}")
        yield
        asked.result()


def newcomer(stage: Stage) -> str:
    """Return the name of the bookie on the spare machine."""
    own = {f"bookie-{number + 1}" for number in range(_bookies(stage))}
    found: set[str] = set()

    def has_come() -> bool:
        found.update(_serving(stage) - own)
        return bool(found)

    wait_for(has_come, "the new bookie serves", SETTLE_SECONDS)
    (name,) = found
    stage.say(f"{name} serves on {stage.cluster.spare.address}")
    return name


def _use(stage: Stage, name: str) -> None:
    """Make topics until a ledger is on a bookie."""
    prefix = f"new-{stage.chance.randrange(1 << 32)}"
    numbers = itertools.count()

    def is_used() -> bool:
        with client.producer(f"{prefix}-{next(numbers)}") as producer:
            producer.send(b"value")
        with suppress(HeliographError):
            return any(name in part.bookies for ledger in stage.ledgers() for part in ledger.segments)
        return False

    with heliograph.connect(stage.cluster.service_url) as client:
        wait_for(is_used, f"a new ledger is on {name}", SETTLE_SECONDS)


def check_gone(stage: Stage, name: str) -> None:
    """Wait until a bookie is gone; no ledger may be on it by then."""
    wait_for(lambda: name not in _serving(stage), f"{name} does not serve any more", SETTLE_SECONDS)
    own = {f"bookie-{number + 1}" for number in range(_bookies(stage))}
    assert (left := stage.ledgers_elsewhere(own)) == [], f"{name} went before it was empty: {left}"
    wait_for(lambda: name not in _parts(stage), f"{name} is gone", SETTLE_SECONDS)
    stage.say(f"{name} is empty, and gone")


def _serving(stage: Stage) -> set[str]:
    return {name for name in stage.metadata(registered) if name.startswith(BOOKIE_PREFIX)}


def _parts(stage: Stage) -> set[str]:
    return {actor["name"] for actor in stage.cluster.status()["actors"]}


def _check_replicators(stage: Stage) -> None:
    """Each machine has a replication worker, and the status of repair has all of them."""
    machines = [*stage.cluster.machines, stage.cluster.spare]

    def reporting() -> list[str]:
        return sorted(json.loads(stage.cluster.helio("ledgers", "repair-status", "--json"))["workers"])

    wait_for(lambda: len(reporting()) == len(machines), "a replicator of each machine reports", SETTLE_SECONDS)
    assert all(machine.pids(REPLICATOR) for machine in machines), "they run on all machines"
    stage.say(f"{', '.join(reporting())} report")


def _roster(stage: Stage) -> Roster:
    found = stage.metadata(load_roster)
    assert found is not None, "the cluster has an operator"
    return found


def _kill_operator(stage: Stage) -> None:
    killed = [pid for machine in stage.cluster.machines for pid in machine.pids(OPERATOR)]
    stage.say(f"the operator is killed, {len(killed)} process")
    for machine in stage.cluster.machines:
        machine.kill(OPERATOR)
    assert killed, "an operator runs"


def remove_spare(stage: Stage) -> None:
    """Switch the spare machine off, and wait until the operator would take it for a new one."""
    spare = stage.cluster.spare
    spare.kill(RAYLET, by=signal.SIGTERM)  # it tells the head, which notices a loss of power after some time only
    wait_for(lambda: spare.address not in _roster(stage).nodes, "its node is forgotten", SETTLE_SECONDS)
    spare.power_off()
