"""Faults that wait for the moment at which they do most harm, and several that strike together."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.fault import fault
from tests.simulation.nemesis import Nemesis
from tests.simulation.store import Change

PATIENCE_MS = 3_000  # what a fault waits for comes within, or not at all


def when_changed(nemesis: Nemesis, is_it: Callable[[Change], bool], then: Callable[[], object]) -> None:
    """Have ``then`` happen at the next change of a ledger's record for which ``is_it`` holds."""
    watchers = nemesis.cluster.store.watchers

    def watch(change: Change) -> None:
        if is_it(change):
            watchers.remove(watch)
            nemesis.later(0, then)

    def stop() -> None:
        if watch in watchers:
            watchers.remove(watch)

    watchers.append(watch)
    nemesis.later(PATIENCE_MS, stop)


@fault("disk lost behind a takeover", 3)
def lose_fences(nemesis: Nemesis, random: Random) -> bool:
    """A takeover reaches few bookies; one of these loses its disk, fences too; and the old owner writes on.

    The old owner is silent meanwhile, and hears nothing from the bookies that are fenced.
    """
    old, ensemble = nemesis.brokers[-1], nemesis.ensemble()
    victim = nemesis.choose_lossy(random)
    if victim is None or victim not in ensemble or not nemesis.can_take_over():
        return False
    ledger_id = old.writer.ledger_id
    schedule = nemesis.profile
    spared = random.sample([b for b in ensemble if b is not victim], schedule.ack_quorum - 1)
    old.quiet_until = nemesis.world.now + PATIENCE_MS

    def take_over() -> None:
        if not nemesis.take_over():
            return
        for bookie in spared:
            nemesis.cut(nemesis.brokers[-1].name, bookie.name, PATIENCE_MS)
        for bookie in ensemble:
            if bookie is not victim and bookie not in spared:
                nemesis.cut(bookie.name, old.name, 2 * PATIENCE_MS)

    def lose() -> None:
        if victim.is_up:
            nemesis.lose_disk(victim, 20)
            nemesis.later(60, go_on)

    def go_on() -> None:
        old.quiet_until = 0

    def is_closed(change: Change) -> bool:
        after = change.after
        return after is not None and after.ledger_id == ledger_id and after.is_closed

    when_changed(nemesis, is_closed, lose)
    nemesis.later(random.randrange(100, 400), take_over)
    return True
