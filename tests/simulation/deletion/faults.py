"""Faults in runs of deletions: those of ledgers that need no writer, and the end of a broker within a deletion."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.simulation import events
from tests.simulation.faults import faults
from tests.simulation.faults.fault import KINDS, Fault, fault
from tests.simulation.faults.nemesis import Nemesis

KINDS_FROM = (faults, events)
NAMES = {
    *("bookie crashed", "bookie crashes at an awkward moment", "power cut of all bookies", "network partition"),
    *("bookie slow", "link slow", "bookie congested", "kind of request late", "bookie lost its session"),
    *("sync about to fail", "broker crashed", "process paused", "metadata store unreachable", "checkpoint"),
    *("takeover beside a live broker", "garbage collection"),
}
DELETION_KINDS: list[Fault] = [kind for kind in KINDS if kind.name in NAMES]
WRITES_MAX = 12  # a deletion of these topics has not many more


@fault("broker ended within a deletion", 14, DELETION_KINDS)
def end_in_deletion(nemesis: Nemesis, random: Random) -> bool:
    """End the broker that was asked to delete, or the owner, at one of its next changes of metadata.

    The change is made or not. The broker crashes or loses its session, and often another one takes over.
    """
    administrator: Any = nemesis.scene.administrator  # type: ignore[attr-defined]
    asked = administrator.at
    broker = random.choice([one for one in (asked, nemesis.brokers[-1]) if one is not None])
    if asked is None or not broker.is_up or broker.is_lost or not nemesis.can_take_over():
        return False
    listeners, left = nemesis.cluster.store.on_nodes, random.randrange(WRITES_MAX) + 1
    crashes = random.random() < 0.7

    def end() -> None:
        if broker.is_up and not broker.is_lost:
            nemesis.world.count("broker ended right after a write")
            broker.crash() if crashes else broker.session.lose()
            if broker is nemesis.brokers[-1]:
                nemesis.take_over()

    def listen(author: Any, operations: object) -> None:
        nonlocal left
        left -= author.process == broker.name
        if left <= 0:
            listeners.remove(listen)
            nemesis.later(0, end)

    def stop() -> None:
        if listen in listeners:
            listeners.remove(listen)

    listeners.append(listen)
    nemesis.later(3_000, stop)
    return True
