"""Faults that wait for the moment at which they do most harm, and combinations of faults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.metadata.model import LedgerMetadata
from tests.simulation.checkers.checkers import write_set
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.network import ANYONE
from tests.simulation.cluster.runner import Cluster
from tests.simulation.cluster.store import Change
from tests.simulation.faults.fault import fault
from tests.simulation.faults.nemesis import BROKERS_MAX, Nemesis

PATIENCE_MS = 3_000  # how long a fault waits for its moment


def when_changed(nemesis: Nemesis, is_it: Callable[[Change], bool], then: Callable[[], object]) -> None:
    """Call ``then`` at the next change of a ledger's record for which ``is_it`` holds."""
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


@fault("disk lost behind a takeover", 4)
def lose_fences(nemesis: Nemesis, random: Random) -> bool:
    """Let a takeover reach few bookies, one of which loses its disk and fences, while the old owner writes on.

    The old owner is silent meanwhile, and gets no answers of the fenced bookies.
    """
    old, ensemble = nemesis.brokers[-1], nemesis.ensemble()
    victim = nemesis.choose_lossy(random)
    if victim is None or victim not in ensemble or not nemesis.can_take_over():
        return False
    ledger_id = old.writer.ledger_id
    spared = random.sample([b for b in ensemble if b is not victim], nemesis.profile.ack_quorum - 1)
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
            old.quiet_until = nemesis.world.now + 60

    def is_closed(change: Change) -> bool:
        after = change.after
        return after is not None and after.ledger_id == ledger_id and after.is_closed

    when_changed(nemesis, is_closed, lose)
    nemesis.later(random.randrange(100, 400), take_over)
    return True


@fault("answers repeated late", 2)
def repeat_answers(nemesis: Nemesis, random: Random) -> bool:
    """Repeat all answers of one bookie seconds later, when the ensemble may be another one."""
    bookie = random.choice(nemesis.bookies)
    network = nemesis.cluster.network
    network.repeat(bookie.name, random.choice((400, 1_500, 5_000)))
    nemesis.later(random.choice((1_000, 3_000)), lambda: network.repeat(bookie.name, 0))
    return True


@fault("clock jumped", 1)
def jump(nemesis: Nemesis, random: Random) -> bool:
    """Set a broker's clock ahead, so that its timeouts are over."""
    random.choice(nemesis.brokers[-3:]).clock_ahead_ms += random.choice((300, 3_000, 60_000))
    return True


@fault("journal lost", 1)
def lose_journal(nemesis: Nemesis, random: Random) -> bool:
    """Lose the journal of a bookie that may lose data. It comes back with what it had flushed."""
    bookie = nemesis.choose_lossy(random)
    if bookie is None or not bookie.is_up:
        return False
    nemesis.lose_disk(bookie, random.choice((50, 500, 4_000)), only_journal=True)
    return True


@fault("copies of one entry damaged", 2)
def damage_copies(nemesis: Nemesis, random: Random) -> bool:
    """Damage a confirmed entry on all of its bookies that may lose data. Another bookie has it."""
    found = []
    safe = nemesis.safe_bookies
    for ledger_id in nemesis.cluster.store.ledgers():
        record = nemesis.cluster.store.history[ledger_id][-1]
        for entry_id in range(nemesis.confirmed_to(ledger_id) + 1):
            key = (ledger_id, entry_id)
            bookies = [nemesis.cluster.bookies[b] for b in write_set(record, entry_id)]
            sound = [b for b in bookies if b.disk.holds(*key)]
            lossy = [b for b in sound if b not in safe]
            if lossy and len(lossy) < len(sound):
                found.append((key, lossy))
    if not found:
        return False
    key, lossy = random.choice(found)
    for bookie in lossy:
        bookie.flush()
        bookie.damage(key)
    nemesis.world.count("entry with two damaged copies", len(lossy) > 1)
    return True


@fault("disk full to the last byte", 1)
def stuff_disk(nemesis: Nemesis, random: Random) -> bool:
    """Fill the disk of one bookie so that it takes nothing, not even from recoveries; perhaps during one."""
    bookie = random.choice(nemesis.ensemble() or nemesis.bookies)
    bookie.is_full = bookie.is_stuffed = True

    def free() -> None:
        bookie.is_full = bookie.is_stuffed = False

    nemesis.later(2_000, free)
    if random.random() < 0.5:
        nemesis.later(random.randrange(200), nemesis.take_over)
    return True


@fault("change, recovery and repairs at once", 2)
def race(nemesis: Nemesis, random: Random) -> bool:
    """Kill a bookie of the open ledger, and let its writer, recoveries and repairs change the record at once."""
    ensemble = nemesis.ensemble()
    if not ensemble:
        return False
    ledger_id = nemesis.brokers[-1].writer.ledger_id
    nemesis.crash(random.choice(ensemble), random)
    nemesis.delay_kind(ANYONE, "store", random.choice((100, 400)), "metadata")
    for _ in range(2):
        nemesis.later(random.randrange(300), lambda: nemesis.repair(ledger_id))
        nemesis.later(random.randrange(300), lambda: nemesis.recover(ledger_id))
    return True


@fault("vacancy filled in a race", 4)
def fill_in_a_race(nemesis: Nemesis, random: Random) -> bool:
    """Let bookies return to the vacancies of the open ledger while recoveries and repairs change its record.

    Where it has none, all bookies but E - 1 go away and the topic is taken over first, so that the next ledger has one.
    """
    if _open_with_vacancy(nemesis) is not None:
        _fill(nemesis, random)
        return True
    writer = nemesis.brokers[-1].writer
    there = [bookie for bookie in nemesis.bookies if bookie.is_up]
    if writer is None or len(there) < writer.metadata.ensemble_size:
        return False
    gone = random.sample(there, len(there) - writer.metadata.ensemble_size + 1)
    for bookie in gone:
        nemesis.go_away(bookie, loses_disk=False)
        nemesis.later(8_000, partial(nemesis.come_back, bookie))
    nemesis.later(random.randrange(1_000, 2_500), nemesis.take_over)
    for delay_ms in (3_000, 4_000, 5_000):
        nemesis.later(delay_ms, lambda: _fill(nemesis, random))
    return True


def _open_with_vacancy(nemesis: Nemesis) -> int | None:
    """Return the newest open ledger whose last segment has a vacancy."""
    store = nemesis.cluster.store
    for ledger_id in sorted(store.ledgers(), reverse=True):
        record = store.history[ledger_id][-1]
        if not record.is_closed and any(map(is_vacancy, record.last_segment.bookies)):
            return ledger_id
    return None


def _fill(nemesis: Nemesis, random: Random) -> None:
    ledger_id = _open_with_vacancy(nemesis)
    if ledger_id is None:
        return
    nemesis.world.count("bookies return to a vacancy of the open ledger")
    nemesis.delay_kind(ANYONE, "store", random.choice((100, 400)), "metadata")
    nemesis.bring_back()
    for _ in range(2):
        nemesis.later(random.randrange(500), lambda: nemesis.repair(ledger_id))
        nemesis.later(random.randrange(500), lambda: nemesis.recover(ledger_id))


@fault("three takeovers at once", 1)
def take_over_at_once(nemesis: Nemesis, random: Random) -> bool:
    """Let three brokers take the topic over at the same time, beside its owner."""
    if len(nemesis.brokers) + 3 > BROKERS_MAX:
        return False
    for _ in range(3):
        nemesis.later(random.randrange(40), nemesis.take_over)
    return True


@fault("limbo looked through", 3)
def look_through_limbo(nemesis: Nemesis, random: Random) -> bool:
    """Let bookies that lost data and got it back take complete ledgers out of limbo."""
    bookie = nemesis.choose_lossy(random)
    if bookie is None or not bookie.is_up or not bookie.memory.limbo:
        return False
    named = [ledger.ledger_id for ledger in nemesis.cluster.store.ledgers_naming(bookie.name)]
    for ledger_id in random.sample(named, min(2, len(named))):
        nemesis.repair(ledger_id)
    for delay_ms in (600, 1_500):
        nemesis.later(delay_ms, lambda: look(bookie, nemesis.cluster))
    return True


def look(bookie: SimulatedBookie, cluster: Cluster) -> None:
    """Do a checkpoint, and take complete ledgers out of limbo."""
    if bookie.is_up:
        bookie.checkpoint()
        leave_limbo(bookie, cluster)


def leave_limbo(bookie: SimulatedBookie, cluster: Cluster) -> None:
    """Take complete ledgers of a bookie out of limbo, by a recent list of metadata."""
    store = cluster.store

    def on_records(records: list[LedgerMetadata]) -> None:
        bookie.world.count("ledger left limbo", bookie.leave_limbo(records))

    store.ask(bookie, lambda: [store.history[n][-1] for n in store.ledgers()], on_records, lambda: None)
