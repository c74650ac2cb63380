"""Events that are no faults by themselves and do harm when they meet one: takeovers, recoveries, repairs, deletions."""

from __future__ import annotations

from random import Random

from metadata.model import TopicRecord
from tests.simulation.deletion import Trimmer, collect_garbage
from tests.simulation.fault import fault
from tests.simulation.faults import REQUESTS
from tests.simulation.nemesis import BROKERS_MAX, REPAIRERS_MAX, Nemesis
from tests.simulation.network import ANYONE


@fault("takeover beside a live broker", 4)
def take_over(nemesis: Nemesis, random: Random) -> bool:
    """A new broker takes the topic over while the old one goes on, believing that it owns it."""
    return nemesis.take_over()


@fault("takeover past a congested bookie", 2)
def take_over_past_congestion(nemesis: Nemesis, random: Random) -> bool:
    """One bookie of the ledger being written hears old writer and new owner late and in any order."""
    ensemble = nemesis.ensemble()
    if not ensemble or not nemesis.can_take_over():
        return False
    nemesis.slow(ANYONE, random.choice(ensemble).name, random.choice((200, 600)), 3_000)
    nemesis.later(random.randrange(100), nemesis.take_over)
    return True


@fault("handover among late requests", 6)
def hand_over(nemesis: Nemesis, random: Random) -> bool:
    """Producers move to a new broker while their last adds are under way, and requests overtake each other.

    The old broker goes on, and has nothing to send: what it learns of its last adds comes from late answers only.
    """
    ensemble = nemesis.ensemble()
    if not ensemble or not nemesis.can_take_over():
        return False
    nemesis.delay_kinds(ensemble, REQUESTS, random)
    delay = random.randrange(50, 400)
    old = nemesis.brokers[-1]

    def go_quiet() -> None:
        old.quiet_until = nemesis.world.now + 4_000

    nemesis.later(delay, go_quiet)
    nemesis.later(delay + random.randrange(100), nemesis.take_over)
    return True


@fault("takeover among failing bookies", 8)
def take_over_among_failures(nemesis: Nemesis, random: Random) -> bool:
    """Bookies of the ledger being written fail before and while a new owner recovers it, maybe several times."""
    ensemble = nemesis.ensemble()
    if not ensemble or not nemesis.can_take_over():
        return False
    random.shuffle(ensemble)
    if random.random() < 0.5:  # the old owner hears nothing: much is under way, and the recovery is long
        for bookie in ensemble:
            nemesis.delay_kind(bookie.name, ANYONE, 1_000, "SendAdd")
    delay = random.randrange(1_000)
    if random.random() < 0.7:
        nemesis.later(delay, lambda: nemesis.crash_when_unsynced(ensemble[-1], "recovered entry", 0, 4_000))
    for bookie in ensemble[: random.choice((0, 0, 1, 2))]:
        nemesis.later(random.randrange(1_500), lambda bookie=bookie: nemesis.crash(bookie, random))  # type: ignore[misc]
    nemesis.later(delay, nemesis.take_over)
    if random.random() < 0.5:
        nemesis.later(random.randrange(1_000, 3_000), nemesis.take_over)
    return True


@fault("ledger deleted behind its writer", 2)
def delete_behind_writer(nemesis: Nemesis, random: Random) -> bool:
    """A broker stands still until its ledger is closed, left behind, deleted and collected. Then it goes on."""
    if nemesis.brokers[-1].writer is None or len(nemesis.brokers) + 2 > BROKERS_MAX:
        return False
    nemesis.brokers[-1].paused_until = nemesis.world.now + 4_000
    for delay_ms in (10, 1_200, 2_400):
        nemesis.later(delay_ms, nemesis.take_over)
    for delay_ms in (2_400, 3_200):
        nemesis.later(delay_ms, lambda: trim(nemesis, random))
    for bookie in nemesis.bookies:
        nemesis.later(3_700, lambda bookie=bookie: collect_garbage(bookie, nemesis.cluster, nemesis.checkers))  # type: ignore[misc]
    return True


@fault("takeover in the middle of a rollover", 2)
def take_over_rollover(nemesis: Nemesis, random: Random) -> bool:
    """A broker that adds its next ledger to the topic is not told that it worked, and is replaced at that moment."""
    listeners = nemesis.cluster.store.on_topic

    def listen(before: TopicRecord, after: TopicRecord) -> None:
        writer = nemesis.brokers[-1].writer
        is_rolling = writer is not None and any(info.ledger_id == writer.ledger_id for info in before.ledgers)
        if is_rolling and len(after.ledgers) > len(before.ledgers):
            listeners.remove(listen)
            nemesis.cut("store", nemesis.brokers[-1].name, 1_500)
            nemesis.later(random.randrange(50), nemesis.take_over)

    def stop_listening() -> None:
        if listen in listeners:
            listeners.remove(listen)

    listeners.append(listen)
    nemesis.later(3_000, stop_listening)
    return True


@fault("recovery by a bystander", 3)
def meddle(nemesis: Nemesis, random: Random) -> bool:
    """Somebody recovers a ledger that is perhaps being written."""
    ledgers = nemesis.cluster.store.topic().record.ledgers
    if not ledgers:
        return False
    nemesis.recover(random.choice(ledgers[-2:]).ledger_id)
    return True


@fault("repair started", 3)
def repair(nemesis: Nemesis, random: Random) -> bool:
    """A worker brings a ledger back to full replication; several may do so at once."""
    ledgers = nemesis.cluster.store.topic().record.ledgers
    if not ledgers or len(nemesis.repairers) >= REPAIRERS_MAX:
        return False
    ledger_id = random.choice(ledgers).ledger_id
    for _ in range(random.choice((1, 1, 2))):
        nemesis.later(random.randrange(100), lambda: nemesis.repair(ledger_id))
    return True


@fault("checkpoint", 6)
def checkpoint(nemesis: Nemesis, random: Random) -> bool:
    """A bookie flushes and moves its mark."""
    up = nemesis.bookies_up()
    if not up:
        return False
    random.choice(up).checkpoint()
    return True


@fault("old ledgers deleted", 3)
def trim(nemesis: Nemesis, random: Random) -> bool:
    """Ledgers at the topic's head are deleted, beside whatever their owner and readers do."""
    Trimmer(nemesis.name_for("trimmer"), nemesis.cluster).trim()
    return True


@fault("garbage collection", 3)
def collect(nemesis: Nemesis, random: Random) -> bool:
    """A bookie looks for ledgers that metadata does not have any more."""
    up = nemesis.bookies_up()
    if not up:
        return False
    bookie = random.choice(up)
    if random.random() < 0.5:  # what it hears of metadata is old
        nemesis.delay_kind("store", bookie.name, random.choice((300, 750)), "metadata")
    collect_garbage(bookie, nemesis.cluster, nemesis.checkers)
    return True
